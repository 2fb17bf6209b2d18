# Counts the tensors that the garbage collector knows, after every step.
import gc

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


counts = []
for number in range(30):
    step()
    counts.append(sum(isinstance(one, torch.Tensor) for one in gc.get_objects()))
print(counts[5:12], counts[20:])
corpus_state.report(model=model, recording_over=True)
