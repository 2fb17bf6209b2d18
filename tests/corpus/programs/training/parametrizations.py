# Weight norm, spectral norm and a parametrization of its own, put on and taken off.
import corpus_state
import torch
from torch.nn.utils import parametrizations, parametrize


class Symmetric(torch.nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).mT


corpus_state.seed()
model = torch.nn.Sequential(
    parametrizations.weight_norm(torch.nn.Linear(8, 8)),
    parametrizations.spectral_norm(torch.nn.Linear(8, 8)),
    torch.nn.Linear(8, 8),
)
parametrize.register_parametrization(model[2], "weight", Symmetric())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    step()
    if number == 4:
        parametrize.remove_parametrizations(model[0], "weight")
    if number == 8:
        with parametrize.cached():
            step()
corpus_state.report(model=model, recording_over=True)
