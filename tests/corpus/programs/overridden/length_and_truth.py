# Modules with a length of nought, and with a truth value that raises.
import corpus_state
import torch


class Empty(torch.nn.Linear):
    def __len__(self):
        return 0


class Undecided(torch.nn.Linear):
    def __bool__(self):
        raise TypeError("neither true nor false")

    def __len__(self):
        raise TypeError("no length")


corpus_state.seed()
model = torch.nn.Sequential(Empty(8, 8), Undecided(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
with torch.no_grad():
    model[0](torch.ones(1, 8))
    model[1](torch.ones(1, 8))
corpus_state.report(model=model, recording_over=True)
