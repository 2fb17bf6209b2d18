# Stateless calls with other weights, and swapped tensors.
import corpus_state
import torch
from torch.func import functional_call

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


outs = []
for number in range(30):
    step()
    halves = {name: value.detach() * 0.5 for name, value in model.named_parameters()}
    outs.append(functional_call(model, halves, (torch.ones(1, 8),)).sum().item())
print([round(out, 5) for out in outs])
corpus_state.report(model=model, recording_over=True)
