# An exception inside the step of an optimizer.
# status: 1
import corpus_state
import torch


class Failing(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        raise OSError("disk full")


corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = Failing(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


step()
