"""Hooks on every module and parameter note what is allocated, and whether what was freed is gone."""
# also: --passes memory,time

import time
import weakref

import corpus_state
import torch

torch.manual_seed(27)
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
noted, watched = [], []


def note(*_: object) -> None:
    noted.append(torch.cuda.memory_allocated())


def watch(module: torch.nn.Module, args: tuple, output: torch.Tensor) -> None:
    note()
    watched.append(weakref.ref(output))


for module in model:
    module.register_forward_pre_hook(note)
    module.register_forward_hook(watch)
    module.register_full_backward_hook(note)
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(note)
lines = []
for _ in range(200):
    model(torch.randn(64, 128, device="cuda")).square().mean().backward()
    note(len(watched), sum(one() is not None for one in watched))
    lines.append((tuple(noted), len(watched), sum(one() is not None for one in watched)))
    noted.clear()
    watched.clear()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
for number, line in enumerate(lines):
    if number < 2 or line != lines[number - 1]:
        print(number, *line)
corpus_state.report(model=model)
