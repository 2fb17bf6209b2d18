# A module that overrides _call_impl and _wrapped_call_impl.
import corpus_state
import torch


class Inner(torch.nn.Linear):
    calls = []

    def _call_impl(self, *args, **kwargs):
        Inner.calls.append("impl")
        return super()._call_impl(*args, **kwargs)


class Outer(torch.nn.Sequential):
    def _wrapped_call_impl(self, *args, **kwargs):
        Inner.calls.append("wrapped")
        return super()._wrapped_call_impl(*args, **kwargs)


corpus_state.seed()
model = Outer(Inner(8, 8), Inner(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(len(Inner.calls), Inner.calls[:4])
corpus_state.report(model=model, recording_over=True)
