# A module whose __call__ never reaches torch's, and one whose _call_impl is its own.
import corpus_state
import torch


class Bare(torch.nn.Linear):
    def __call__(self, x):
        return self.forward(x)


class Own(torch.nn.Linear):
    calls = 0

    def _call_impl(self, *args, **kwargs):
        Own.calls += 1
        return super()._call_impl(*args, **kwargs)

    __call__ = _call_impl


corpus_state.seed()
model = torch.nn.Sequential(Bare(8, 8), Own(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(Own.calls)
corpus_state.report(model=model, recording_over=True)
