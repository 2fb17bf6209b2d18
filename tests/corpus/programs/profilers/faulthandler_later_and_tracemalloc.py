# faulthandler watches steps with a time limit, tracemalloc takes snapshots, both are stopped again.
import faulthandler
import tracemalloc

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


tracemalloc.start(3)
for number in range(24):
    faulthandler.dump_traceback_later(60)
    step()
    faulthandler.cancel_dump_traceback_later()
    if number == 8:
        print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit())
        tracemalloc.stop()
print(faulthandler.is_enabled(), tracemalloc.is_tracing())
corpus_state.report(model=model, recording_over=True)
