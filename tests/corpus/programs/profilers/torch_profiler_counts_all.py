# torch's own profiler tells of every operator how often it ran.
import corpus_state
import torch
from torch.profiler import ProfilerActivity, profile

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(24):
    if number in (0, 2, 4, 5, 14, 22):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            step()
        print(number, sorted((event.key, event.count) for event in profiler.key_averages()))
    else:
        step()
corpus_state.report(model=model, recording_over=True)
