# A global hook before optimizer steps replaces the arguments of step().
import corpus_state
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


class Scaled(torch.optim.SGD):
    def step(self, closure=None, factor=1.0):
        for group in self.param_groups:
            group["lr"] = 0.01 * factor
        return super().step(closure)


corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = Scaled(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


register_optimizer_step_pre_hook(lambda one, args, kwargs: (args, {**kwargs, "factor": 3.0}))
for _ in range(30):
    step()
print(optimizer.param_groups[0]["lr"])
corpus_state.report(model=model, recording_over=True)
