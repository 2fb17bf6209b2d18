"""Meta-learning with torch.func: the inner loop is a function of a dictionary of weights, over a batch of tasks."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(32 * 49, 5),
).to(device)
rates = {name: nn.Parameter(torch.full_like(value, 0.05)) for name, value in net.named_parameters()}


def loss_of(weights, images, labels):
    return F.cross_entropy(functional_call(net, weights, (images,)), labels)


def adapted(task):
    images, labels, more_images, more_labels = task
    weights = dict(net.named_parameters())
    for _ in range(2):
        slopes = grad(loss_of)(weights, images, labels)
        weights = {name: value - rates[name] * slopes[name] for name, value in weights.items()}
    return loss_of(weights, more_images, more_labels)


optimizer = torch.optim.Adam([*net.parameters(), *rates.values()], lr=1e-3)
for _ in range(6):
    tasks = (
        torch.randn(6, 15, 1, 28, 28, device=device),
        torch.randint(5, (6, 15), device=device),
        torch.randn(6, 15, 1, 28, 28, device=device),
        torch.randint(5, (6, 15), device=device),
    )
    loss = vmap(adapted, in_dims=(0,), randomness="different")(tasks).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(loss))
