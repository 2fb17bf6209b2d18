# Counts the steps of every optimizer by a hook of its own.
import corpus_state
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

corpus_state.seed()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
register_optimizer_step_post_hook(lambda *_: seen.append(1))
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("trained", len(seen))
corpus_state.report(model=model, recording_over=True)
