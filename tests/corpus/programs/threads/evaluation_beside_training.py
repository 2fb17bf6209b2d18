# A second thread evaluates the model while the main thread trains another.
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


other = torch.nn.Linear(8, 4)
stop = threading.Event()
failures = []


def evaluate():
    while not stop.is_set():
        with torch.no_grad():
            if not other(torch.ones(2, 8)).isfinite().all():
                failures.append("not finite")


thread = threading.Thread(target=evaluate)
thread.start()
for _ in range(30):
    step()
stop.set()
thread.join()
print(failures)
corpus_state.report(model=model)
