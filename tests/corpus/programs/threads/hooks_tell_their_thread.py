# Gradient hooks tell in which thread they are called.
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


seen = set()
model[0].weight.register_hook(lambda grad: seen.add(threading.current_thread().name))
for _ in range(30):
    step()
thread = threading.Thread(target=step, name="second")
thread.start()
thread.join()
print(sorted(seen))
corpus_state.report(model=model, recording_over=True)
