# A group of exceptions from several models.
# status: 1
import corpus_state
import torch


class Failing(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError(f"for {x.shape[0]}")


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
failing, errors = torch.nn.Sequential(Failing()), []
for size in (1, 2, 3):
    try:
        failing(torch.ones(size))
    except RuntimeError as error:
        errors.append(error)
raise ExceptionGroup("all failed", errors)
