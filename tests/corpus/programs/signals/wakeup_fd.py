# Signals wake a socket by set_wakeup_fd.
import signal
import socket

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


here, there = socket.socketpair()
there.setblocking(False)
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.set_wakeup_fd(there.fileno())
for number in range(30):
    step()
    signal.raise_signal(signal.SIGUSR1)
print(list(here.recv(100)) == [signal.SIGUSR1] * 30, signal.set_wakeup_fd(-1) == there.fileno())
here.close()
there.close()
corpus_state.report(model=model, recording_over=True)
