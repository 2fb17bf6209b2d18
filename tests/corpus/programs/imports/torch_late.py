# torch is imported in a function, after other work, and its finder is as it should be.
import sys

import corpus_state

print("torch" in sys.modules)


def train():
    import torch

    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    print(type(torch.__loader__).__name__, sorted(vars(torch.__loader__)), torch.__spec__.name)
    return type(model).__name__


print(train())
corpus_state.report(recording_over=True)
