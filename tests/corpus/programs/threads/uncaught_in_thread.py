# An exception that nobody catches in a thread, from inside a module; the main thread goes on.
import threading

import corpus_state
import torch


class Failing(torch.nn.Module):
    def forward(self, x):
        raise ValueError("in a thread")


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


failing = torch.nn.Sequential(torch.nn.Identity(), Failing())
for number in range(30):
    step()
    if number in (1, 4, 14, 20):
        thread = threading.Thread(target=failing, args=(torch.ones(1),), name=f"thread {number}")
        thread.start()
        thread.join()
corpus_state.report(model=model, recording_over=True)
