# A wrapper subclass that keeps its values in another tensor and unwraps in __torch_dispatch__.
import corpus_state
import torch
from torch.utils._pytree import tree_map


class Wrapped(torch.Tensor):
    calls = 0

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        Wrapped.calls += 1
        plain = lambda one: one.inner if isinstance(one, Wrapped) else one
        wrap = lambda one: Wrapped(one) if isinstance(one, torch.Tensor) else one
        return tree_map(wrap, function(*tree_map(plain, args), **tree_map(plain, kwargs or {})))


corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    optimizer.zero_grad()
    out = model(Wrapped(torch.randn(8, 8)))
    out.inner.square().mean()
    (model.weight.square().sum() + model.bias.sum()).backward()
    optimizer.step()
print(Wrapped.calls, type(out).__name__)
corpus_state.report(model=model, recording_over=True)
