# Goes through a few lines by pdb, with commands on standard input.
# allowed: walks frames
# stdin: continue
import pdb

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


for number in range(24):
    step()
    if number == 1:
        pdb.Pdb(nosigint=True, readrc=False).set_trace()
corpus_state.report(model=model, recording_over=True)
