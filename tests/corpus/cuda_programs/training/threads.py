"""Four threads train at the same time, a model each, on streams of their own."""

import gc
import threading

import corpus_state
import torch

torch.manual_seed(43)
THREADS, STEPS = 4, 80
models = [
    torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Tanh(), torch.nn.Linear(256, 128)) for _ in range(THREADS)
]
batches = [torch.randn(64, 128) for _ in range(THREADS)]
torch.cuda.init()
all_there = threading.Barrier(THREADS)


def train(number: int) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        model, batch = models[number].cuda(), batches[number].cuda()
        optimizer = torch.optim.Adam(model.parameters())
        all_there.wait()
        for _ in range(STEPS):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.current_stream().synchronize()
    model.cpu()


threads = [threading.Thread(target=train, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
# How much was allocated at most depends on which steps met: only what is left is compared.
gc.collect()
torch.cuda.synchronize()
torch.cuda.reset_peak_memory_stats()
print("left:", torch.cuda.memory_allocated(), threading.active_count())
corpus_state.report(model=torch.nn.ModuleList(models))
