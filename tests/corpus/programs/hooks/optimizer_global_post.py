# Counts the steps of every optimizer by a hook of its own.
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


seen = []
handle = register_optimizer_step_post_hook(lambda *_: seen.append(1))
for _ in range(30):
    step()
print("trained", len(seen))
handle.remove()
corpus_state.report(model=model, recording_over=True)
