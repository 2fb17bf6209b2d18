# Raw tensors and functions, no module and no optimizer.
import corpus_state
import torch

corpus_state.seed()
weights = [torch.randn(8, 16, requires_grad=True), torch.randn(16, 4, requires_grad=True)]
for _ in range(30):
    loss = (torch.relu(torch.randn(8, 8) @ weights[0]) @ weights[1]).square().mean()
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients):
            weight -= 0.01 * gradient
corpus_state.report(model=weights)
