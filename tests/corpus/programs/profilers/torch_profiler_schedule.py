# A profiler with a schedule, stepped in every training step, that writes traces.
import json
from pathlib import Path

import corpus_state
import torch
from torch.profiler import ProfilerActivity, profile, schedule

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def write(profiler):
    place = Path(f"trace-{profiler.step_num}.json")
    profiler.export_chrome_trace(str(place))
    names = [event.get("name") for event in json.loads(place.read_text())["traceEvents"]]
    place.unlink()
    print(profiler.step_num, names.count("aten::relu"), any("gpu" + "ledger" in str(name) for name in names))


plan = schedule(wait=2, warmup=1, active=2, repeat=4)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=write, with_stack=False) as profiler:
    for _ in range(30):
        step()
        profiler.step()
corpus_state.report(model=model, recording_over=True)
