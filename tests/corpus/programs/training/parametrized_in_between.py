# Parametrizations come and go during training, with caching and one that fails.
import corpus_state
import torch
from torch.nn.utils import parametrizations, parametrize

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


class Symmetric(torch.nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).t() if weight.shape[0] == weight.shape[1] else weight


parametrizations.weight_norm(model[0])
losses = [step() for _ in range(6)]
parametrize.remove_parametrizations(model[0], "weight")
optimizer.param_groups[0]["params"] = list(model.parameters())
parametrize.register_parametrization(model[2], "weight", Symmetric())
with parametrize.cached():
    losses += [step() for _ in range(6)]
try:
    parametrize.register_parametrization(model[2], "missing", Symmetric())
except ValueError as error:
    print(type(error).__name__, str(error)[:40])
losses += [step() for _ in range(12)]
print(f"{losses[-1]:.6f}", parametrize.is_parametrized(model[0]), type(model[2]).__name__)
corpus_state.report(model=model, recording_over=True)
