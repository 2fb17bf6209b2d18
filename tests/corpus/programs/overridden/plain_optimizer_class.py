# An optimizer that is no torch.optim.Optimizer at all.
import corpus_state
import torch


class Simple:
    def __init__(self, parameters):
        self.parameters = list(parameters)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        for parameter in self.parameters:
            parameter -= 0.05 * parameter.grad


corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = Simple(model.parameters())


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
corpus_state.report(model=model, recording_over=True)
