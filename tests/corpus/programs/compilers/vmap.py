# vmap, jacrev, hessian and per-sample gradients over modules, in every stage.
import corpus_state
import torch
from torch.func import functional_call, grad, hessian, jacrev, vmap

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def loss(weights, x):
    return functional_call(model, weights, (x[None],)).square().mean()


for number in range(24):
    step()
    if number in (0, 2, 4, 8, 14, 20):
        weights = {name: one.detach() for name, one in model.named_parameters()}
        per_sample = vmap(grad(loss), in_dims=(None, 0))(weights, torch.ones(3, 8))
        x = torch.ones(8)
        print(number, per_sample["0.weight"].shape, jacrev(model)(x).shape, hessian(lambda x: model(x).sum())(x).shape)
corpus_state.report(model=model, recording_over=True)
