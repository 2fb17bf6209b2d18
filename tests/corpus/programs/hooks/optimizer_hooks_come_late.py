# Global hooks that come inside the window, in the timing pass, and after it.
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


calls = {}
for number in range(30):
    if number in (1, 3, 4, 5, 13, 14, 15, 20):
        calls[number] = 0

        def count(*_, number=number):
            calls[number] += 1

        register_optimizer_step_pre_hook(count)
        register_optimizer_step_post_hook(count)
    step()
print(calls)
corpus_state.report(model=model, recording_over=True)
