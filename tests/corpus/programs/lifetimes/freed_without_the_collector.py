# What modules are called with and return is freed at once, without the garbage collector, in inference and training.
import gc

import corpus_state
import torch

gc.disable()
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def shapes():
    """Return the shapes of all tensors that are alive."""
    kept = {id(parameter) for parameter in model.parameters()}
    return sorted(tuple(o.shape) for o in gc.get_objects() if type(o) is torch.Tensor and id(o) not in kept)


for _ in range(10):
    with torch.no_grad():
        model(torch.randn(5, 8))
    print(shapes())
for _ in range(30):
    loss = model(torch.randn(7, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del loss
    print(shapes())
corpus_state.report(model=model, recording_over=True)
