# A hook of one optimizer, and a global one, that take themselves out: torch complains of that, bare and recorded.
import corpus_state
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for register in (register_optimizer_step_post_hook, register_optimizer_step_pre_hook):
    for number in range(25):

        def once(*_):
            handle.remove()

        handle = register(once)
        try:
            print(register.__name__, number, f"{step():.6f}")
        except RuntimeError as error:
            print(register.__name__, number, error)
corpus_state.report(model=model, recording_over=True)
