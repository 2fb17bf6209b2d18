"""Functions of autograd with everything that they may have."""

import corpus_state
import torch
from torch.autograd.function import once_differentiable

torch.manual_seed(28)
seen = []


class Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, text, nothing=None):
        ctx.set_materialize_grads(False)
        ctx.scale = scale
        ctx.save_for_backward(x)
        return x * scale, text, x.shape, x.detach().argmax(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, *others):
        (x,) = ctx.saved_tensors
        seen.append([one is None for one in others])
        return (None if grad is None else grad * ctx.scale), None, None, None


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.mul_(2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(*inputs)

    @staticmethod
    def backward(ctx, grad):
        assert ctx.needs_input_grad == (True,)
        return grad * 2

    @staticmethod
    def vmap(info, in_dims, x):
        return x.mul_(2), in_dims[0]

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        y, text, shape, best = Split.apply(self.fc(x), 3.0, "text")
        return Dirty.apply(y.clone()), text, shape, best


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(14):
    y, text, shape, best = model(torch.randn(3, 4))
    y.sum().backward(retain_graph=step % 2 == 0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, f"{y.sum().item():.5f}", text, tuple(shape), best.tolist(), type(y.grad_fn).__name__, len(seen))
print(torch.func.vmap(lambda x: Dirty.apply(x.clone()))(torch.ones(3, 2)).tolist())
corpus_state.report(model=model)
