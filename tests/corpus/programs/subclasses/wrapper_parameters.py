# Parameters that are wrapper subclasses, trained by hand.
import corpus_state
import torch
from torch.utils._pytree import tree_map


class Quantized(torch.Tensor):
    calls = []

    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=requires_grad
        )

    def __init__(self, inner, requires_grad=False):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        Quantized.calls.append(str(function))
        plain = lambda one: one.inner if isinstance(one, Quantized) else one
        wrap = lambda one: Quantized(one) if isinstance(one, torch.Tensor) else one
        return tree_map(wrap, function(*tree_map(plain, args), **tree_map(plain, kwargs or {})))


corpus_state.seed()
model = torch.nn.Linear(8, 4, bias=False)
model.weight = torch.nn.Parameter(Quantized(torch.randn(4, 8)))
for number in range(30):
    out = model(torch.randn(2, 8))
    out.square().sum().backward()
    with torch.no_grad():
        model.weight.inner.sub_(model.weight.grad.inner * 0.01)
    model.weight.grad = None
print(len(Quantized.calls), sorted(set(Quantized.calls)))
corpus_state.report(model=model.weight.inner, recording_over=True)
