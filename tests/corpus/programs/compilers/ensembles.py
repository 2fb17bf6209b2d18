# Ensembles of stacked models under vmap, with random numbers inside.
import corpus_state
import torch
from torch.func import functional_call, stack_module_state, vmap

corpus_state.seed()
models = [torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.5)) for _ in range(3)]
weights, buffers = stack_module_state(models)
optimizer = torch.optim.SGD(weights.values(), lr=0.05)


def call(weights, buffers, x):
    return functional_call(models[0], (weights, buffers), (x,))


for number in range(30):
    optimizer.zero_grad()
    out = vmap(call, in_dims=(0, 0, None), randomness="different")(weights, buffers, torch.randn(8, 8))
    out.square().mean().backward()
    optimizer.step()
corpus_state.report(model=dict(weights), recording_over=True)
