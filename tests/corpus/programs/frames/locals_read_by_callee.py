# A helper keeps its caller's variables, as frameworks do that save hyperparameters.
import inspect

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


class Saved:
    def save(self):
        self.options = inspect.currentframe().f_back.f_locals


def train(saved, steps, rate=0.1):
    saved.save()
    for _ in range(steps):
        step()
    return saved.options["rate"], saved.options["steps"]


print(train(Saved(), 30))
corpus_state.report(model=model, recording_over=True)
