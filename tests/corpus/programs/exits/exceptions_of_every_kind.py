"""forward, backward hooks and the optimizer raise what usually ends something else."""

import asyncio

import corpus_state
import torch

torch.manual_seed(24)
KINDS = (
    StopIteration,
    GeneratorExit,
    StopAsyncIteration,
    asyncio.CancelledError,
    MemoryError,
    RecursionError,
    SystemError,
    KeyboardInterrupt,
    SystemExit,
    OSError,
    UnicodeError,
)
raises = None


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        if raises is not None and raises[0] == "forward":
            raise raises[1]("forward")
        return self.fc(x)


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        if raises is not None and raises[0] == "step":
            raise raises[1]("step")
        return super().step(closure)


model = torch.nn.Sequential(Net(), torch.nn.Tanh())
optimizer = Optimizer(model.parameters(), lr=0.1)


def in_backward(grad):
    if raises is not None and raises[0] == "backward":
        raise raises[1]("backward")


for number, kind in enumerate(KINDS):
    for place in ("forward", "backward", "step", None):
        raises = (place, kind) if place else None
        try:
            y = model(torch.randn(2, 4))
            y.register_hook(in_backward)
            y.sum().backward()
            optimizer.step()
        except BaseException as error:
            depth, frame = 0, error.__traceback__
            while frame is not None:
                depth, frame = depth + 1, frame.tb_next
            print(number, place, type(error).__name__, error.args[:1], error.__context__, error.__cause__, depth)
        optimizer.zero_grad()
corpus_state.report(model=model)
