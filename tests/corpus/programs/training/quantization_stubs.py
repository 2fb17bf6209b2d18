# Observers and fake quantization in a training that is aware of it.
import corpus_state
import torch
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

corpus_state.seed()
model = torch.nn.Sequential(
    FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255),
    torch.nn.Linear(8, 8),
    FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255),
)
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
