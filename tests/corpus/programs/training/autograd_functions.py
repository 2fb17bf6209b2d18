# Functions of its own: with setup_context, once differentiable, with saved tensors and with none.
import corpus_state
import torch
from torch.autograd.function import once_differentiable


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(x, factor):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]
        ctx.mark_non_differentiable()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        return x.exp(), x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return None if first is None else first * x.exp()


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
refused = 0
for _ in range(30):
    optimizer.zero_grad()
    hidden = Scale.apply(model(torch.randn(8, 8)), 0.5)
    Once.apply(hidden)[0].mean().backward()
    optimizer.step()
    x = torch.ones(2, requires_grad=True)
    try:
        torch.autograd.grad(torch.autograd.grad(Once.apply(x)[0].sum(), x, create_graph=True)[0].sum(), x)
    except RuntimeError:
        refused += 1
print(refused)
corpus_state.report(model=model, recording_over=True)
