# The program asks whether torch is there before it imports it, and lazily.
import importlib.metadata
import importlib.util
import sys

import corpus_state

spec = importlib.util.find_spec("torch")
print(spec.name, "torch" in sys.modules, type(spec.loader).__name__, importlib.metadata.version("torch").split(".")[0])
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


for _ in range(30):
    step()
print(importlib.util.find_spec("torch") is torch.__spec__, importlib.util.find_spec("no_such_thing"))
corpus_state.report(model=model, recording_over=True)
