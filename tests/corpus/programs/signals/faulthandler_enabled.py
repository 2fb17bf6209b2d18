# The whole program runs with faulthandler, and registers a signal with it.
# allowed: walks frames
import faulthandler
import signal

import corpus_state
import torch

faulthandler.enable()
faulthandler.register(signal.SIGUSR1, all_threads=False, chain=False)
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    step()
    if number in (1, 4, 14, 20):
        signal.raise_signal(signal.SIGUSR1)
corpus_state.report(model=model, recording_over=True)
