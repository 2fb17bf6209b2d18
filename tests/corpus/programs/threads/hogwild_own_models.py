# Four threads train a model each, at the same time.
import threading

import corpus_state
import torch

corpus_state.seed()
models = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)) for _ in range(4)]
data = torch.randn(8, 64)


def work(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(40):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()


torch.optim.SGD(models[0].parameters(), lr=0.1)
threads = [threading.Thread(target=work, args=(model,), name=f"trainer {n}") for n, model in enumerate(models)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
corpus_state.report(model=models)
