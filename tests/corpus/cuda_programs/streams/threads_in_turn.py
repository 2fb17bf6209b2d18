"""Four threads take turns at training, each a model of its own on a stream of its own."""
# also: --steps 1:100000

import threading

import corpus_state
import torch

torch.manual_seed(3)
THREADS, STEPS = 4, 30
models = [
    torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Tanh(), torch.nn.Linear(256, 128)) for _ in range(THREADS)
]
batches = [torch.randn(64, 128) for _ in range(THREADS)]
turn = threading.Condition()
taken = 0
streams = [None] * THREADS


def train(number: int) -> None:
    global taken
    streams[number] = stream = torch.cuda.Stream()
    for step in range(STEPS):
        with turn:
            while taken % THREADS != number:
                if not turn.wait(20):
                    raise TimeoutError(f"thread {number} waits for its turn")
            with torch.cuda.stream(stream):
                if step == 0:
                    models[number].cuda()
                    batches[number] = batches[number].cuda()
                    optimizer = torch.optim.Adam(models[number].parameters())
                models[number](batches[number]).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            stream.synchronize()
            taken += 1
            turn.notify_all()


threads = [threading.Thread(target=train, args=(number,), name=f"train-{number}") for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(taken, len({stream.cuda_stream for stream in streams}), threading.active_count())
corpus_state.report(model=torch.nn.ModuleList(models))
