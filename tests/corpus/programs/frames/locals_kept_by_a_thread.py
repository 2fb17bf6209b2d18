# A thread keeps what locals() returned there, while the main thread trains.
import threading

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


begun, ended = threading.Event(), threading.Event()


def wait(name, level=3):
    options = locals()
    begun.set()
    ended.wait()
    print(sorted(options), options["level"])


thread = threading.Thread(target=wait, args=("waiting",))
thread.start()
begun.wait()
for _ in range(30):
    step()
ended.set()
thread.join()
corpus_state.report(model=model, recording_over=True)
