# A low recursion limit, set by the program in the middle of the recording.
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


limit = sys.getrecursionlimit()
for number in range(30):
    sys.setrecursionlimit(120 if number % 3 == 1 else limit)
    try:
        step()
    except RecursionError as error:
        print(number, error)
sys.setrecursionlimit(limit)
corpus_state.report(model=model, recording_over=True)
