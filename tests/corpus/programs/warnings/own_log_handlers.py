# Every logger's records are counted: nobody else logs anything.
import logging

import corpus_state
import torch

names = []


class Counting(logging.Handler):
    def emit(self, record):
        names.append(record.name)


logging.getLogger().addHandler(Counting())
logging.getLogger().setLevel(logging.INFO)
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(sorted(set(names)), sorted(name for name in logging.root.manager.loggerDict if "ledger" in name))
corpus_state.report(model=model, recording_over=True)
