# Low-rank adapters on a frozen layer, merged into its weight after training.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE


class Adapted(nn.Module):
    def __init__(self, inner, rank):
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inner.in_features) * 0.1)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, inputs):
        return self.inner(inputs) + inputs @ self.down.t() @ self.up.t()


model = nn.Sequential(Adapted(nn.Linear(8, 16), 2), nn.ReLU(), Adapted(nn.Linear(16, 4), 2)).to(device)
trained = [one for one in model.parameters() if one.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-2, total_steps=25)
for _ in range(25):
    loss = model(torch.randn(8, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
with torch.no_grad():
    for layer in (model[0], model[2]):
        layer.inner.weight += layer.up @ layer.down
        layer.up.zero_()
print(len(trained), f"{loss.item():.5f}")
corpus_state.report(model=model, recording_over=True)
