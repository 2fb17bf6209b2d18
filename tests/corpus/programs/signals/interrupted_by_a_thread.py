# A thread interrupts the main thread, which trains on afterwards.
import _thread
import threading
import time

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


waits = threading.Event()


def interrupt():
    waits.wait()
    _thread.interrupt_main()


thread = threading.Thread(target=interrupt)
thread.start()
for _ in range(15):
    step()
try:
    waits.set()
    thread.join()
    for _ in range(600):
        time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted")
for _ in range(15):
    step()
corpus_state.report(model=model, recording_over=True)
