# A tensor subclass refuses every function that it does not know.
import corpus_state
import torch

KNOWN = {"linear", "relu", "square", "mean", "backward", "sum", "mul"}


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ not in KNOWN:
            raise TypeError(f"{function.__name__} of a Refusing")
        return super().__torch_function__(function, types, args, kwargs or {})


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [torch.randn(8, 8).as_subclass(Refusing) for _ in range(30)]
for one in data:
    model(one).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
try:
    print(data[0].shape)
except TypeError as error:
    print(error)
corpus_state.report(model=model, recording_over=True)
