"""Activations kept on the CPU by hooks of saved tensors, checkpoints of layers, and states loaded again."""

import io

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pack(tensor):
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() and tensor.numel() > 1000 else tensor


def unpack(tensor):
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


class Mixer(nn.Module):
    def __init__(self, places=64, width=256):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 128), nn.GELU(), nn.Linear(128, places))
        self.along = nn.Sequential(nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, width))

    def forward(self, x):
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.second(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain, self.packed, self.again = Mixer(), Mixer(), nn.Sequential(*(Mixer() for _ in range(4)))
        self.last, self.head = Mixer(), nn.Linear(256, 10)

    def forward(self, x):
        with save_on_cpu():
            x = self.plain(x)
        with saved_tensors_hooks(pack, unpack):
            x = self.packed(x)
        x = checkpoint_sequential(self.again, 2, x, use_reentrant=False)
        x = checkpoint(self.last, x, use_reentrant=True)
        return self.head(x.mean(1))


torch.manual_seed(0)
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(5):
    x = torch.randn(24, 64, 256).to(device)
    loss = F.cross_entropy(model(x), torch.randint(10, (24,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 1:
        kept = {name: value.cpu() for name, value in model.state_dict().items()}
        model.load_state_dict({name: value.to(device) for name, value in kept.items()})
        optimizer.load_state_dict(optimizer.state_dict())
del io
