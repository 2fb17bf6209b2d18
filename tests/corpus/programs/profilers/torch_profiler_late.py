# The program makes a profiler of its own in the step in which the recorder's would be at work.
import corpus_state
import torch
from torch.profiler import profile

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    if number in (4, 5, 6):
        with profile() as profiler:
            step()
        print(number, len([event for event in profiler.events() if event.name == "aten::linear"]))
    else:
        step()
corpus_state.report(model=model, recording_over=True)
