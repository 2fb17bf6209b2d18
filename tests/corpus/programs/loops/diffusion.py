# A small denoising diffusion model: training on noised samples, then sampling without gradients.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE
model = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
kept = torch.linspace(0.99, 0.1, 10, device=device)
for _ in range(25):
    clean = torch.randn(16, 8, device=device)
    when = torch.randint(0, 10, (16, 1), device=device)
    noise = torch.randn_like(clean)
    noised = kept[when].sqrt() * clean + (1 - kept[when]).sqrt() * noise
    loss = (model(torch.cat([noised, when / 10], dim=1)) - noise).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
sample = torch.randn(4, 8, device=device)
with torch.no_grad():
    for when in reversed(range(10)):
        steps = torch.full((4, 1), when / 10, device=device)
        sample = sample - 0.1 * model(torch.cat([sample, steps], dim=1))
print(f"{loss.item():.5f} {sample.abs().mean().item():.5f}")
corpus_state.report(model=model, recording_over=True)
