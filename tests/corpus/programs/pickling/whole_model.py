# The model and its optimizer are pickled in every stage: the size is the same.
import pickle

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
    if number in (0, 1, 2, 3, 4, 5, 8, 13, 14, 15, 20):
        bytes_ = pickle.dumps((model, optimizer.state_dict()))
        print(number, len(bytes_))
other, _ = pickle.loads(bytes_)
print(torch.equal(other[0].weight, model[0].weight))
corpus_state.report(model=model, recording_over=True)
