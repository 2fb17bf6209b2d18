"""Each parameter has an optimizer of its own that steps as soon as its gradient is there, and frees it."""

import time

import corpus_state
import torch

torch.manual_seed(42)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}


def step(parameter: torch.nn.Parameter) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(60):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    time.sleep(0.02)
print(all(parameter.grad is None for parameter in model.parameters()), torch.cuda.max_memory_allocated())
corpus_state.report(model=model)
