"""Weights in int8 with one scale a row, made from a trained model and evaluated on texts of several lengths."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Int8Linear(nn.Module):
    def __init__(self, plain):
        super().__init__()
        scale = plain.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (plain.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", plain.bias.detach().clone())

    def forward(self, x):
        largest = x.abs().amax(-1, keepdim=True) / 127
        coarse = (x / largest.clamp(min=1e-8)).round() * largest
        return F.linear(coarse, self.weight.to(x.dtype) * self.scale, self.bias)


def replace(module):
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child))
        else:
            replace(child)
    return module


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        value, gate = self.mix(self.norm(x)).chunk(2, -1)
        x = x + self.out(value.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None] * gate.sigmoid())
        return x + self.down(F.gelu(self.up(x)))


torch.manual_seed(0)
width = 384
model = nn.Sequential(nn.Embedding(4000, width), *(Block(width) for _ in range(4)), nn.Linear(width, 4000)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(4):
    ids = torch.randint(4000, (8, 97), device=device)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
small = replace(torch.nn.Sequential(*model))
del optimizer, loss, ids
for parameter in model.parameters():
    parameter.grad = None
with torch.no_grad():
    errors = []
    for length in (64, 256, 448):
        ids = torch.randint(4000, (16, length), device=device)
        scores = small(ids)
        errors.append(F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item())
print(errors)
