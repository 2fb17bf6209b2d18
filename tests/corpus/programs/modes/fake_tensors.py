# Fake tensors and a fake training beside the real one.
import corpus_state
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

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
    if number in (0, 2, 4, 5, 14, 20):
        with FakeTensorMode() as mode:
            fake = torch.nn.Linear(1 << 14, 1 << 14)
            loss = fake(torch.randn(4, 1 << 14)).sum()
            loss.backward()
        print(number, type(loss).__name__, tuple(fake.weight.grad.shape))
corpus_state.report(model=model, recording_over=True)
