# torch's own counter of floating-point operations.
import corpus_state
import torch
from torch.utils.flop_counter import FlopCounterMode

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
    with FlopCounterMode(model, display=False) as counter:
        step()
    if number in (0, 3, 4, 14, 29):
        print(number, counter.get_total_flops(), sorted(counter.get_flop_counts()))
corpus_state.report(model=model, recording_over=True)
