# Each thread has its own grad mode, and its own values in a threading.local.
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


local = threading.local()
seen = []


def job(number):
    local.number = number
    with torch.set_grad_enabled(number % 2 == 0):
        seen.append((local.number, torch.is_grad_enabled(), model(torch.ones(1, 8)).requires_grad))


for number in range(30):
    with torch.no_grad():
        thread = threading.Thread(target=job, args=(number,))
        thread.start()
        thread.join()
    step()
print(seen, vars(local))
corpus_state.report(model=model, recording_over=True)
