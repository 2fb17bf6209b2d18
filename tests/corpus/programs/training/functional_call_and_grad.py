# functional_call with stacked weights, vmap over models and per-sample gradients, between optimizer steps.
import copy

import corpus_state
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def loss_of(weights, inputs):
    return functional_call(model, weights, (inputs[None],)).square().mean()


for number in range(24):
    step()
    if number % 3 == 0:
        weights = {name: value.detach() for name, value in model.named_parameters()}
        each = vmap(grad(loss_of), in_dims=(None, 0))(weights, torch.ones(4, 8))
weights, buffers = stack_module_state([model, copy.deepcopy(model)])
outputs = vmap(lambda own, inputs: functional_call(model, own, (inputs,)), in_dims=(0, None))(weights, torch.ones(2, 8))
print({name: tuple(value.shape) for name, value in each.items()}, tuple(outputs.shape))
corpus_state.report(model=model, recording_over=True)
