# A tracer with leaf rules of its own, and a proxy that is called like a module.
import corpus_state
import torch
from torch.fx import GraphModule, Tracer


class Shallow(Tracer):
    asked = []

    def is_leaf_module(self, module, name):
        Shallow.asked.append(name)
        return not isinstance(module, torch.nn.Sequential)


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    step()
    if number in (1, 9, 15):
        tracer = Shallow()
        module = GraphModule(tracer.root if False else model, tracer.trace(model))
        print(number, module.code.strip().splitlines()[-1], Shallow.asked)
corpus_state.report(model=model, recording_over=True)
