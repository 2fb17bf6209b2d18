# KeyboardInterrupt that nobody catches, from inside a module.
# status: -2
import signal

import corpus_state
import torch


class Interrupted(torch.nn.Module):
    def forward(self, x):
        if count == 2:
            signal.raise_signal(signal.SIGINT)
            sum(range(1000))
        return x


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.append(Interrupted())


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for count in range(30):
    step()
