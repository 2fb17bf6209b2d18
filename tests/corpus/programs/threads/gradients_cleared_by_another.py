# Another thread sets gradients to None and to new tensors between the steps of its own optimizer, all the time.
# also: --steps 1:100000
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


others = [torch.nn.Linear(8, 8) for _ in range(6)]
ended = threading.Event()
turns = []


def clear():
    trained = torch.optim.SGD([weight for other in others for weight in other.parameters()], lr=0.01)
    while not ended.is_set() or len(turns) < 50:
        for other in others:
            other.weight.grad = torch.zeros(8, 8)
            other(torch.ones(1, 8)).sum().backward()
        trained.zero_grad()
        for other in others:
            other.weight.grad = None
        turns.append(1)


thread = threading.Thread(target=clear)
thread.start()
losses = [step() for _ in range(40)]
ended.set()
thread.join()
print(f"{losses[-1]:.6f}", len(turns) >= 50, all(other.weight.grad is None for other in others))
corpus_state.report(model=model)
