# Two heads with an optimizer each on one trunk, their gradients projected against each other.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE
trunk, heads = nn.Linear(8, 16), nn.ModuleList([nn.Linear(16, 1), nn.Linear(16, 4)])
model = nn.ModuleList([trunk, heads]).to(device)
optimizers = [torch.optim.SGD(trunk.parameters(), lr=0.05), torch.optim.Adam(heads.parameters(), lr=1e-2)]
for _ in range(25):
    inputs = torch.randn(16, 8, device=device)
    hidden = trunk(inputs).relu()
    losses = [
        nn.functional.mse_loss(heads[0](hidden)[:, 0], inputs.sum(1)),
        nn.functional.cross_entropy(heads[1](hidden), inputs[:, :4].argmax(1)),
    ]
    one, other = (torch.autograd.grad(loss, list(trunk.parameters()), retain_graph=True) for loss in losses)
    for optimizer in optimizers:
        optimizer.zero_grad()
    sum(losses).backward()
    for parameter, mine, theirs in zip(trunk.parameters(), one, other, strict=True):
        against = (mine * theirs).sum()
        parameter.grad = mine + theirs - (against < 0) * against / theirs.square().sum().clamp(min=1e-9) * theirs
    for optimizer in optimizers:
        optimizer.step()
print([f"{loss.item():.5f}" for loss in losses])
corpus_state.report(model=model, recording_over=True)
