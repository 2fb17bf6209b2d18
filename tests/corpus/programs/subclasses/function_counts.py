# A tensor subclass counts what it is used for.
import corpus_state
import torch


class Counted(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Counted.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(30):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8).as_subclass(Counted)).square().mean()
    loss.backward()
    optimizer.step()
    if number in (0, 2, 3, 4, 5, 13, 14, 15, 29):
        print(number, Counted.calls, type(loss).__name__)
corpus_state.report(model=model, recording_over=True)
