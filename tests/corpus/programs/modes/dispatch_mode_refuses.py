# A dispatch mode refuses every operator that would read a tensor's value on the host.
import corpus_state
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoReads(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "local_scalar" in str(function) or "_to_copy" in str(function):
            raise RuntimeError(f"{function} waits for the device")
        return function(*args, **(kwargs or {}))


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(30):
    with NoReads():
        optimizer.zero_grad()
        loss = model(torch.randn(8, 8)).square().mean()
        loss.backward()
        optimizer.step()
    if number % 10 == 0:
        try:
            with NoReads():
                loss.item()
        except RuntimeError as error:
            print(error)
corpus_state.report(model=model, recording_over=True)
