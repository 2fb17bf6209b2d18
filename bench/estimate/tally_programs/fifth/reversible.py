"""A reversible network: backward computes the activations again from the outputs, block by block."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx, first, second, blocks):
        with torch.no_grad():
            for f, g in blocks:
                first = first + f(second)
                second = second + g(first)
        ctx.blocks = blocks
        ctx.save_for_backward(first, second)
        return first, second

    @staticmethod
    def backward(ctx, first_gradient, second_gradient):
        first, second = ctx.saved_tensors
        for f, g in reversed(ctx.blocks):
            with torch.enable_grad():
                first_leaf = first.detach().requires_grad_(True)
                made = g(first_leaf)
            made.backward(second_gradient)
            first_gradient = first_gradient + first_leaf.grad
            with torch.no_grad():
                second = second - made.detach()
            del made
            with torch.enable_grad():
                second_leaf = second.detach().requires_grad_(True)
                made = f(second_leaf)
            made.backward(first_gradient)
            second_gradient = second_gradient + second_leaf.grad
            with torch.no_grad():
                first = first - made.detach()
            del made
        return first_gradient, second_gradient, None


def part(width):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))


class Net(nn.Module):
    def __init__(self, width=160, depth=10):
        super().__init__()
        self.enter, self.leave = nn.Linear(48, 2 * width), nn.Linear(2 * width, 90)
        self.blocks = nn.ModuleList(nn.ModuleList([part(width), part(width)]) for _ in range(depth))

    def forward(self, x):
        first, second = self.enter(x).chunk(2, -1)
        first, second = Reversible.apply(first, second, self.blocks)
        return self.leave(torch.cat([first, second], -1))


torch.manual_seed(0)
model = Net().to(device)
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
for _ in range(5):
    data, labels = torch.randn(12, 512, 48, device=device), torch.randint(90, (12, 512), device=device)
    loss = F.cross_entropy(model(data).transpose(1, 2), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
