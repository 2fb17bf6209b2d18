"""Optimizer hooks of the program's own, global and local, before and after; some come and go while it trains."""
# also: --passes memory,time

import time

import corpus_state
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

torch.manual_seed(40)
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
seen = {"global before": 0, "global after": 0, "after": 0, "once": 0}


def count(name: str):
    def hook(*_: object) -> None:
        seen[name] += 1
        torch.cuda.current_stream().synchronize()

    return hook


def once(*_: object) -> None:
    seen["once"] += 1
    handle.remove()


register_optimizer_step_pre_hook(count("global before"))
register_optimizer_step_post_hook(count("global after"))
optimizer.register_step_post_hook(count("after"))
for step in range(200):
    if step in (1, 3, 12, 100):
        handle = register_optimizer_step_post_hook(once)
    model(torch.randn(64, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
print(seen)
corpus_state.report(model=model, seen=seen)
