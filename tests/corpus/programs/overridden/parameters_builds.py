# A model that makes its layers when parameters() is called first.
import corpus_state
import torch


class Late(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def parameters(self, recurse=True):
        self.calls += 1
        if "inner" not in self._modules:
            self.inner = torch.nn.Linear(8, 4)
        return super().parameters(recurse)

    def forward(self, x):
        if "inner" not in self._modules:
            return x.sum(dim=1, keepdim=True) * torch.ones(1, requires_grad=True)
        return self.inner(x)


corpus_state.seed()
model = Late()
model(torch.ones(2, 8)).sum().backward()
torch.randn(3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(model.calls)
corpus_state.report(model=model, recording_over=True)
