# Signals are blocked while the model trains, and waited for afterwards.
import os
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


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM})
for number in range(30):
    step()
    os.kill(os.getpid(), signal.SIGUSR2)
    if number == 4:
        os.kill(os.getpid(), signal.SIGTERM)
print(sorted(int(one) for one in signal.sigpending()))
print(int(signal.sigwait({signal.SIGUSR2})), int(signal.sigwait({signal.SIGTERM})))
corpus_state.report(model=model, recording_over=True)
