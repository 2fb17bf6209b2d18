# SIGVTALRM and SIGPROF timers interrupt training; handlers count and change the timer.
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


fired = []


def ring(number, frame):
    if len(fired) < 3:
        fired.append(signal.Signals(number).name)
    if len(fired) == 3:
        signal.setitimer(signal.ITIMER_PROF, 0)


signal.signal(signal.SIGPROF, ring)
signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
losses = [step() for _ in range(24)]
while len(fired) < 3:
    step_of_work = sum(range(1000))
print(fired)
corpus_state.report()
