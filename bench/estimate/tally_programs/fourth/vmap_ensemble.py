"""An ensemble as one batch of weights: stacked modules, gradients by vmap, and disagreement on a test set."""

import copy

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(300, 256), nn.Linear(256, 256), nn.Linear(256, 30)

    def forward(self, x):
        return self.third(F.gelu(self.second(F.gelu(self.first(x)))))


torch.manual_seed(0)
models = [Net().to(device) for _ in range(8)]
weights, buffers = stack_module_state(models)
base = copy.deepcopy(models[0]).to("meta")
del models
moments = {name: torch.zeros_like(value) for name, value in weights.items()}


def loss_of(one, state, x, labels):
    return F.cross_entropy(functional_call(base, (one, state), (x,)), labels)


for _ in range(8):
    x, labels = torch.randn(8, 200, 300, device=device), torch.randint(30, (8, 200), device=device)
    slopes, losses = vmap(grad_and_value(loss_of))(weights, buffers, x, labels)
    with torch.no_grad():
        for name, value in weights.items():
            moments[name].mul_(0.9).add_(slopes[name])
            value.sub_(0.01 * moments[name])
with torch.no_grad():
    test = torch.randn(600, 300, device=device)
    scores = vmap(lambda one, state: functional_call(base, (one, state), (test,)))(weights, buffers)
    print(scores.softmax(-1).var(0).sum(-1).mean())
