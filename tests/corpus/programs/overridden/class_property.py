# A module whose __class__ and training are properties, as proxies have them.
import corpus_state
import torch


class Proxy(torch.nn.Module):
    asked = []

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)

    @property
    def __class__(self):
        Proxy.asked.append("class")
        return torch.nn.Linear

    @property
    def training(self):
        Proxy.asked.append("training")
        return True

    @training.setter
    def training(self, value):
        pass

    def forward(self, x):
        return self.inner(x)


corpus_state.seed()
model = Proxy()
optimizer = torch.optim.SGD(model.inner.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


asked = len(Proxy.asked)
for _ in range(30):
    step()
print(asked, len(Proxy.asked))
corpus_state.report(model=model.inner, recording_over=True)
