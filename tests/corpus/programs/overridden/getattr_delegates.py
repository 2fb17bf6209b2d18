# A wrapper whose missing attributes come from the model inside, and are counted.
import corpus_state
import torch


class Wrapper(torch.nn.Module):
    asked = []

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        if name == "inner":
            return super().__getattr__(name)
        Wrapper.asked.append(name)
        return getattr(super().__getattr__("inner"), name)

    def forward(self, x):
        return self.inner(x)


corpus_state.seed()
model = Wrapper(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(Wrapper.asked, model.out_features)
corpus_state.report(model=model, recording_over=True)
