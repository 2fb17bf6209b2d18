"""A shape that does not fit ends the program in backward of the second step, with a traceback."""
# status: 1

import functools

import torch

torch.manual_seed(63)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def check(step: int, gradient: torch.Tensor) -> None:
    if step == 1:
        raise ValueError(f"a gradient of shape {tuple(gradient.shape)}")


for step in range(30):
    output = model(torch.randn(32, 64, device="cuda"))
    output.register_hook(functools.partial(check, step))
    output.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
