# A module whose state_dict, load_state_dict, apply, to and requires_grad_ are its own.
import corpus_state
import torch


class Own(torch.nn.Linear):
    calls = []

    def state_dict(self, *args, **kwargs):
        Own.calls.append("state_dict")
        return super().state_dict(*args, **kwargs)

    def _apply(self, function, recurse=True):
        Own.calls.append("_apply")
        return super()._apply(function, recurse)

    def __getstate__(self):
        Own.calls.append("getstate")
        return super().__getstate__() if hasattr(super(), "__getstate__") else self.__dict__


corpus_state.seed()
model = Own(8, 4)
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
