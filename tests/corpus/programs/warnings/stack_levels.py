# Warnings with each stack level, from inside nested modules: the file and the line they name.
import warnings

import corpus_state
import torch


class Warning_(torch.nn.Module):
    def forward(self, x):
        warnings.warn(f"level {level} in step {number}", stacklevel=level)
        return x


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.append(torch.nn.Sequential(Warning_()))


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


warnings.simplefilter("always")
for number in range(24):
    for level in range(1, 13):
        if number in (0, 2, 4, 8, 14, 20):
            model(torch.ones(1, 8))
    level = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step()
warnings.simplefilter("ignore")
corpus_state.report(model=model, recording_over=True)
