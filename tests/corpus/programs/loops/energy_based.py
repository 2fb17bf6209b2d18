# An energy-based model: samples come from gradient steps on inputs, inside every training step.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE
model = nn.Sequential(nn.Linear(2, 16), nn.Softplus(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(22):
    real = torch.randn(16, 2, device=device) + 2
    made = torch.randn(16, 2, device=device, requires_grad=True)
    for _ in range(4):
        (slope,) = torch.autograd.grad(model(made).sum(), made)
        made = (made - 0.1 * slope + 0.05 * torch.randn_like(made)).detach().requires_grad_()
    loss = model(real).mean() - model(made.detach()).mean() + 0.1 * model(real).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
corpus_state.report(model=model, recording_over=True)
