"""An optimizer with the Hessian's diagonal by Hessian-vector products, and the largest eigenvalue by iteration."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class DiagonalNewton(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, diagonals):
        for group in self.param_groups:
            for parameter, diagonal in zip(group["params"], diagonals, strict=True):
                state = self.state[parameter]
                if not state:
                    state["mean"], state["curvature"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["mean"].mul_(0.9).add_(parameter.grad, alpha=0.1)
                state["curvature"].mul_(0.99).addcmul_(diagonal, diagonal, value=0.01)
                parameter.addcdiv_(state["mean"], state["curvature"].sqrt().add_(1e-6), value=-group["lr"])


def products(gradients, parameters, vectors, keep):
    return torch.autograd.grad(gradients, parameters, vectors, retain_graph=keep)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(784, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10)).to(device)
parameters = list(model.parameters())
optimizer = DiagonalNewton(parameters)
for step in range(6):
    images, labels = torch.randn(256, 784).to(device), torch.randint(10, (256,)).to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward(create_graph=True)
    gradients = [parameter.grad for parameter in parameters]
    signs = [torch.randint_like(parameter, 2) * 2 - 1 for parameter in parameters]
    found = products(gradients, parameters, signs, step % 3 == 0)
    diagonals = [sign * product for sign, product in zip(signs, found, strict=True)]
    if step % 3 == 0:
        vectors, largest = [torch.randn_like(parameter) for parameter in parameters], None
        for _ in range(20):
            length = torch.sqrt(sum(vector.pow(2).sum() for vector in vectors))
            vectors = [vector / (length + 1e-6) for vector in vectors]
            found = products(gradients, parameters, vectors, True)
            value = sum((a * b).sum() for a, b in zip(found, vectors, strict=True)).item()
            if largest is not None and abs(value - largest) / (abs(largest) + 1e-6) < 1e-3:
                break
            largest, vectors = value, [one.detach() for one in found]
    for parameter in parameters:
        parameter.grad = parameter.grad.detach()
    del gradients, found, loss
    optimizer.step(diagonals)
