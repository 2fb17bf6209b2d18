# Models are copied deeply and shallowly in every stage, and the copies train.
import copy

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


for number in range(30):
    step()
    if number in (0, 2, 4, 8, 14, 20):
        twin = copy.deepcopy(model)
        flat = copy.copy(model)
        twin(torch.ones(1, 8)).sum().backward()
        print(number, sorted(vars(twin)), twin[0].weight.grad.abs().sum() > 0, flat[0] is model[0])
corpus_state.report(model=model, recording_over=True)
