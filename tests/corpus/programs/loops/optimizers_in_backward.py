# One optimizer for each parameter, stepped as soon as its gradient is there, and no optimizer in the loop.
import corpus_state
import torch
from torch import nn

corpus_state.seed()
layers = [layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(16, 4))
optimizers = {weight: torch.optim.Adam([weight], lr=1e-2, foreach=False) for weight in model.parameters()}


def update(weight):
    optimizers[weight].step()
    optimizers[weight].zero_grad()


for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(update)
for _ in range(14):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,)))
    loss.backward()
print(f"{loss.item():.6f}", sum(weight.grad is None for weight in model.parameters()))
corpus_state.report(model=model, recording_over=True)
