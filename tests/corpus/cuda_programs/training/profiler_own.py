"""A profiler of the program's own, with a schedule, runs from the second step on."""

import collections

import corpus_state
import torch

torch.manual_seed(31)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
told = []


def tell(profiler: torch.profiler.profile) -> None:
    kinds = collections.Counter(event.device_type.name for event in profiler.events())
    operators = sorted((event.key, event.count) for event in profiler.key_averages() if event.key.startswith("aten::"))
    told.append((kinds["CUDA"] > 0, operators))


schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
with torch.profiler.profile(schedule=schedule, on_trace_ready=tell) as profiler:
    for _ in range(30):
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        profiler.step()
print(told)
corpus_state.report(model=model)
