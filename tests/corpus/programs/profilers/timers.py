# timeit and torch's benchmark timer time calls of the model.
import timeit

import corpus_state
import torch
from torch.utils.benchmark import Timer

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(20):
    step()
    timeit.timeit("model(x)", number=2, globals={"model": model, "x": torch.ones(1, 8)})
measured = Timer("model(x)", globals={"model": model, "x": torch.ones(1, 8)}, num_threads=1).timeit(3)
print(measured.number_per_run, torch.get_num_threads())
corpus_state.report(model=model, recording_over=True)
