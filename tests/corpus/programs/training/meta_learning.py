# An inner loop with gradients through the inner steps.
import corpus_state
import torch
from torch.func import functional_call

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(24):
    weights = dict(model.named_parameters())
    for _ in range(2):
        loss = functional_call(model, weights, (torch.randn(4, 8),)).square().mean()
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: weight - 0.1 * grad for (name, weight), grad in zip(weights.items(), gradients)}
    optimizer.zero_grad()
    functional_call(model, weights, (torch.randn(4, 8),)).square().mean().backward()
    optimizer.step()
corpus_state.report(model=model, recording_over=True)
