# An audit hook refuses to let anybody list the objects or the frames of the process.
# allowed: recording ends early
# allowed: notes
import sys

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


def refuse(event, _args):
    if event in ("gc.get_objects", "gc.get_referrers", "sys._current_frames"):
        raise PermissionError(event)


sys.addaudithook(refuse)
for _ in range(30):
    step()
try:
    sys._current_frames()
except PermissionError as error:
    print(error)
corpus_state.report(model=model, recording_over=True)
