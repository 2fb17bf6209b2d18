# tracemalloc tells what the program's own lines keep. Blocks of less than a page depend on what Python keeps for reuse.
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


tracemalloc.start(5)
kept = []
for number in range(30):
    step()
    kept.append(bytearray(10_000))
snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__, all_frames=False)])
large = [one for one in snapshot.traces if one.size > 4_096]
print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit(), [one.size for one in large])
tracemalloc.stop()
corpus_state.report(model=model, recording_over=True)
