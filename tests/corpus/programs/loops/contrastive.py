# Contrastive learning: two views of a batch, one encoder called twice a step, a temperature that is learned.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
temperature = nn.Parameter(torch.tensor(1.0, device=device))
optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [temperature], "lr": 1e-3}], lr=1e-2)
for _ in range(25):
    batch = torch.randn(12, 10, device=device)
    one, other = (nn.functional.normalize(model(batch + 0.1 * torch.randn_like(batch)), dim=1) for _ in range(2))
    logits = one @ other.t() * temperature.exp()
    target = torch.arange(12, device=device)
    loss = (nn.functional.cross_entropy(logits, target) + nn.functional.cross_entropy(logits.t(), target)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f} {temperature.item():.5f}")
corpus_state.report(model=[model, temperature], recording_over=True)
