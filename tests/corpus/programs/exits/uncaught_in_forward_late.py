# An exception out of nested modules that nobody catches, in the timing pass.
# status: 1
import corpus_state
import torch


class Failing(torch.nn.Module):
    def forward(self, x):
        raise KeyError("late")


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(4):
    step()
torch.nn.Sequential(torch.nn.Sequential(Failing()))(torch.ones(4))
