# A model that takes a lock in forward, and hooks that wait for it in another thread.
import threading

import corpus_state
import torch

lock = threading.RLock()


class Locked(torch.nn.Linear):
    def forward(self, x):
        with lock:
            return super().forward(x)


corpus_state.seed()
model = Locked(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


counts = []


def other():
    for _ in range(50):
        with lock, torch.no_grad():
            counts.append(torch.ones(4).sum().item())


thread = threading.Thread(target=other)
thread.start()
for _ in range(30):
    step()
thread.join()
print(sum(counts))
corpus_state.report(model=model)
