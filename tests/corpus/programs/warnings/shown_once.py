# Warnings that are shown once for each place: the registries are untouched.
import warnings

import corpus_state
import torch


class Warning_(torch.nn.Module):
    def forward(self, x):
        warnings.warn("from forward")
        warnings.warn("from the caller", DeprecationWarning, stacklevel=2)
        warnings.warn("from further up", FutureWarning, stacklevel=4)
        return x


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.append(Warning_())


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(len(globals().get("__warningregistry__", ())))
corpus_state.report(model=model, recording_over=True)
