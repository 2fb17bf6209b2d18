# A signal's handler makes a whole training step of another model.
import signal

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


other = torch.nn.Linear(4, 4)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)


def train_other(*_):
    other_optimizer.zero_grad()
    other(torch.ones(1, 4)).sum().backward()
    other_optimizer.step()


signal.signal(signal.SIGUSR1, train_other)
model[1].register_forward_pre_hook(lambda *_: signal.raise_signal(signal.SIGUSR1))
for _ in range(30):
    step()
corpus_state.report(model=[model, other], recording_over=True)
