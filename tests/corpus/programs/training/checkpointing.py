# Activation checkpointing, reentrant and not, with dropout inside.
import corpus_state
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

corpus_state.seed()
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2)) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(30):
    optimizer.zero_grad()
    data = torch.randn(8, 8, requires_grad=True)
    out = checkpoint(model[0], data, use_reentrant=number % 2 == 0)
    out = checkpoint_sequential(model[1:], 2, out, use_reentrant=False)
    out.square().mean().backward()
    optimizer.step()
corpus_state.report(model=model, recording_over=True)
