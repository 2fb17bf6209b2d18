# The standard library's trace module counts the lines of this file.
import trace

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def run():
    for _ in range(30):
        step()


tracer = trace.Trace(count=True, trace=False)
tracer.runfunc(run)
counts = tracer.results().counts
print(sorted((line, count) for (file, line), count in counts.items() if file == __file__))
corpus_state.report(model=model, recording_over=True)
