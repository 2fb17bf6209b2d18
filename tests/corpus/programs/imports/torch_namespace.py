# A directory named torch without __init__ lies beside the program: the real one is found.
from pathlib import Path

import corpus_state

Path("torch").mkdir()
Path("torch/data.txt").write_text("data")
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
corpus_state.report(model=model, recording_over=True)
