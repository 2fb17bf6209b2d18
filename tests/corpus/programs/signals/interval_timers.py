# Interval timers of all three kinds count while the program trains.
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


counts = {signal.SIGALRM: 0, signal.SIGVTALRM: 0, signal.SIGPROF: 0}


def count(number, frame):
    counts[number] += 1


for number in counts:
    signal.signal(number, count)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
while min(counts.values()) < 5:
    step()
for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
    signal.setitimer(timer, 0)
print("all timers ran")
corpus_state.report()
