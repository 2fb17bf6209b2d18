# Callbacks of the garbage collector, and how much it finds in each stage.
import gc

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


gc.collect()
gc.disable()
phases = []
gc.callbacks.append(lambda phase, info: phases.append((phase, info["generation"])))
found = []
for number in range(30):
    cycle = [number]
    cycle.append(cycle)
    del cycle
    step()
    found.append(gc.collect() > 0)
print(phases[:4], len(phases), all(found))
gc.callbacks.clear()
gc.enable()
corpus_state.report(model=model, recording_over=True)
