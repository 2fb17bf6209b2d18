"""Parts of programs with Python code that backward calls: an autograd function, and hooks that update weights."""

from __future__ import annotations

SQUARE = """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient  # own backward
"""

UPDATES_IN_HOOKS = """
means = {weight: torch.zeros_like(weight) for weight in model.parameters()}
optimizers = {weight: torch.optim.SGD([weight], lr=0.1) for weight in model[1].parameters()}

def update(weight):
    with torch.no_grad():
        means[weight].mul_(0.9).add_(weight.grad)  # mean
        weight.sub_(0.1 * means[weight])  # change
    weight.grad = None

def step(weight):
    optimizers[weight].step()  # step
    optimizers[weight].zero_grad()

for weight in model[0].parameters():
    weight.register_post_accumulate_grad_hook(update)
for weight in model[1].parameters():
    weight.register_post_accumulate_grad_hook(step)
"""
"""``model`` has two layers."""
