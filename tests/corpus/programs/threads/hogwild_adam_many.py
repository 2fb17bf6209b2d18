# Eight threads with Adam and deeper models, twice after each other.
import threading

import corpus_state
import torch

corpus_state.seed()


def make():
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(32, 32), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers)


models = [make() for _ in range(8)]
data = torch.randn(4, 32)


def work(model):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(12):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()


torch.optim.Adam(models[0].parameters())
for _ in range(2):
    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
corpus_state.report(model=models)
