# Exceptions with causes, contexts and notes, thrown through modules.
# status: 1
import corpus_state
import torch


class Wrapping(torch.nn.Module):
    def forward(self, x):
        try:
            return torch.nn.functional.linear(x, torch.ones(3, 3))
        except RuntimeError as error:
            error.add_note("a note on the way")
            raise ValueError("wrapped") from error


class Losing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Wrapping()

    def forward(self, x):
        try:
            return self.inner(x)
        finally:
            {}["lost"]


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


step()
Losing()(torch.ones(1, 4))
