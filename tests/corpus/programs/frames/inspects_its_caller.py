# Looks at its caller's local variables by inspect.stack, as frameworks do.
# allowed: walks frames
import inspect

import corpus_state
import torch


class Asking(torch.nn.Module):
    def forward(self, x):
        callers = [one.function for one in inspect.stack()]
        if number in (0, 2, 4, 8, 14, 20):
            print(number, callers)
        return x


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.append(Asking())


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(24):
    step()
corpus_state.report(model=model, recording_over=True)
