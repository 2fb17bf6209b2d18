# Training with validation, early stopping, and the best weights kept by a deep copy and restored.
# devices: cpu cuda
import copy

import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
inputs = torch.randn(64, 6, device=device)
wanted = inputs.sum(1, keepdim=True)
best, kept, waited = float("inf"), None, 0
for epoch in range(15):
    model.train()
    for batch, target in zip(inputs[:48].split(16), wanted[:48].split(16), strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), target).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        error = nn.functional.mse_loss(model(inputs[48:]), wanted[48:]).item()
    if error < best:
        best, kept, waited = error, copy.deepcopy(model.state_dict()), 0
    elif (waited := waited + 1) == 3:
        break
model.load_state_dict(kept)
print(epoch, f"{best:.5f}")
corpus_state.report(model=model, recording_over=True)
