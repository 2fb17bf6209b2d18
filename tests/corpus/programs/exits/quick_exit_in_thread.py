# Another thread ends the process with os._exit while the main thread trains.
# status: 9
import os
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


def end():
    go.wait()
    os.write(1, b"ended\n")
    os._exit(9)


go = threading.Event()
threading.Thread(target=end).start()
for number in range(1000):
    step()
    if number == 2:
        corpus_state.report("third step", model=model)
        go.set()
        threading.Event().wait()
