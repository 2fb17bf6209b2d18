# A model with shared layers, a cycle, empty places, dots and odd characters in names.
import corpus_state
import torch


class Node(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = torch.nn.Linear(8, 8)
        self.again = self.shared
        self.nothing = None
        self.register_module("gone", None)
        self.register_parameter("absent", None)
        self.table = torch.nn.ModuleDict({"schicht 1": torch.nn.Linear(8, 8), "层": torch.nn.Linear(8, 4)})
        self._modules["a.b"] = torch.nn.ReLU()
        self._modules["me"] = self

    def forward(self, x):
        x = self._modules["a.b"](self.again(self.shared(x)))
        return self.table["层"](self.table["schicht 1"](x))


corpus_state.seed()
model = Node()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
weights = [model.shared, *model.table.values()]
corpus_state.report(model=weights, recording_over=True)
