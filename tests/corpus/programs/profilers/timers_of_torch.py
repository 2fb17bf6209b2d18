# torch.utils.benchmark and timeit time steps and forwards; cProfile is active in some.
import cProfile
import pstats
import timeit

import corpus_state
import torch
from torch.utils import benchmark

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


measured = benchmark.Timer("step()", globals={"step": step}, num_threads=1).timeit(5)
seconds = timeit.repeat("model(inputs)", globals={"model": model, "inputs": torch.ones(2, 8)}, number=2, repeat=3)
profile = cProfile.Profile()
for _ in range(20):
    with profile:
        step()
counted = pstats.Stats(profile).stats
called = {
    place[2]: row[0] for place, row in counted.items() if place[2] in ("step", "forward", "_call_impl", "backward")
}
print(measured.number_per_run, len(seconds), sorted(called.items()))
corpus_state.report(model=model, recording_over=True)
