# A wrapping optimizer whose state and groups are properties of the one inside.
import corpus_state
import torch


class Wrapping(torch.optim.Optimizer):
    reads = []

    def __init__(self, inner):
        self.inner = inner
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}

    @property
    def state(self):
        Wrapping.reads.append("state")
        return self.inner.state

    @property
    def param_groups(self):
        Wrapping.reads.append("groups")
        return self.inner.param_groups

    def step(self, closure=None):
        self.inner.step(closure)

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)


corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = Wrapping(torch.optim.Adam(model.parameters()))


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(Wrapping.reads)
corpus_state.report(model=model, recording_over=True)
