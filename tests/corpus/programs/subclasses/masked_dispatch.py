# A subclass that refuses to be dispatched under any mode but its own training loop.
import traceback

import corpus_state
import torch


class Brittle(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if "detach" in str(function) or "alias" in str(function):
            raise RuntimeError(f"{function} would break me")
        with torch._C._DisableTorchDispatch():
            return function(*args, **(kwargs or {}))


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(30):
    optimizer.zero_grad()
    model(torch.Tensor._make_subclass(Brittle, torch.randn(8, 8))).square().mean().backward()
    optimizer.step()
try:
    torch.Tensor._make_subclass(Brittle, torch.randn(2)).detach()
except RuntimeError:
    traceback.print_exc()
corpus_state.report(model=model, recording_over=True)
