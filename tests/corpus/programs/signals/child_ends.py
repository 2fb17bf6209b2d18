# SIGCHLD is counted and ignored while children come and go.
import signal
import subprocess

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


seen = []
signal.signal(signal.SIGCHLD, lambda *_: seen.append(1))
for number in range(30):
    step()
    if number % 5 == 0:
        subprocess.run(["true"], check=True)
print(len(seen) > 0)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
subprocess.run(["true"], check=False)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
corpus_state.report(model=model, recording_over=True)
