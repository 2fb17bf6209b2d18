# A module with a __call__ of its own, which passes through super and counts.
import corpus_state
import torch


class Called(torch.nn.Linear):
    calls = 0

    def __call__(self, *args, **kwargs):
        Called.calls += 1
        return super().__call__(*args, **kwargs) * 2


corpus_state.seed()
model = torch.nn.Sequential(Called(8, 8), torch.nn.ReLU(), Called(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(Called.calls)
corpus_state.report(model=model, recording_over=True)
