# A whole training of fake tensors.
import corpus_state
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

corpus_state.seed()
with FakeTensorMode():
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.randn(8, 8)).square().mean().backward()
        optimizer.step()
print(type(model.weight).__name__, tuple(model.weight.grad.shape))
corpus_state.report(recording_over=True)
