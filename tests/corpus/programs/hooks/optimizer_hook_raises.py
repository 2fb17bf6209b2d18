# A global hook raises after steps 2, 4, 5, 14, 15 and 20; the program goes on.
import corpus_state
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


seen = 0


def fragile(*_):
    global seen
    seen += 1
    if seen in (2, 4, 5, 14, 15, 20):
        raise ValueError(f"step {seen}")


register_optimizer_step_post_hook(fragile)
for _ in range(30):
    try:
        step()
    except ValueError as error:
        print("went on after", error)
corpus_state.report(model=model, recording_over=True)
