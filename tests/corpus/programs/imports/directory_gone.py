# The directory in which the program runs is removed under it.
import os
import shutil

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


os.mkdir("inner")
os.chdir("inner")
step()
shutil.rmtree(os.path.dirname(os.getcwd()) + "/inner")
for _ in range(29):
    step()
corpus_state.report(model=model, recording_over=True)
