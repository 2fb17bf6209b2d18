# Symbolic traces in every stage: their graphs and their code are the same.
import corpus_state
import torch
from torch.fx import Interpreter, symbolic_trace


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.body(x) + 1)


corpus_state.seed()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    step()
    if number in (0, 2, 4, 8, 14, 20):
        traced = symbolic_trace(model)
        print(number, [node.name for node in traced.graph.nodes], len(traced.code))
        print(Interpreter(traced).run(torch.ones(1, 8)).shape)
traced(torch.ones(1, 8)).sum().backward()
corpus_state.report(model=model, recording_over=True)
