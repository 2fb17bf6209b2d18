# A wrapper of tensors counts the calls of its operators, and refuses one of them: the error is Python's own.
import corpus_state
import torch

calls = []


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        calls.append(str(func))
        if func is torch.ops.aten.mul.Tensor:
            return NotImplemented
        return Wrapper(func(*(one.inner if isinstance(one, Wrapper) else one for one in args)))


corpus_state.seed()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    wrapped = Wrapper(torch.ones(64)) + 1
    try:
        wrapped * 2
    except TypeError as error:
        print(error)
    print(wrapped.inner.sum().item(), calls)
corpus_state.report(model=model)
