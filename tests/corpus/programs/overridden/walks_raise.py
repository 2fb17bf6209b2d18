# A model whose walks raise: it holds layers that nobody may list.
import corpus_state
import torch


class Closed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.inner(x)

    def named_modules(self, *args, **kwargs):
        raise RuntimeError("modules are a secret")

    def named_parameters(self, *args, **kwargs):
        raise RuntimeError("parameters are a secret")

    parameters = buffers = named_buffers = children = named_children = modules = named_parameters


corpus_state.seed()
model = Closed()
optimizer = torch.optim.SGD(model.inner.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
corpus_state.report(model=model, recording_over=True)
