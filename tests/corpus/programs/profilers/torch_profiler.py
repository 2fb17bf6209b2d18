# torch's own profiler around the whole training; it tells how often its operators ran.
import corpus_state
import torch
from torch.profiler import ProfilerActivity, profile, record_function

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for _ in range(30):
        with record_function("my step"):
            step()
counts = {event.key: event.count for event in profiler.key_averages()}
for name in ("my step", "aten::linear", "aten::relu", "aten::randn", "aten::mean", "Optimizer.step#SGD.step"):
    print(name, counts.get(name))
corpus_state.report(model=model, recording_over=True)
