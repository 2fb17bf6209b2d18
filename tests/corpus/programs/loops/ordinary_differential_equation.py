# A neural differential equation: one module called at every step of a solver, and backward through all.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE
model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
optimizer = torch.optim.Adamax(model.parameters(), lr=1e-2)
start = torch.randn(8, 3, device=device)
for _ in range(22):
    state, step = start, 0.1
    for _ in range(5):
        first = model(state)
        second = model(state + step / 2 * first)
        state = state + step * second
    loss = (state - start.roll(1, 0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
corpus_state.report(model=model, recording_over=True)
