# make_fx records operators.
import corpus_state
import torch
from torch.fx.experimental.proxy_tensor import make_fx

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def loss(x):
    return model(x).square().mean()


for number in range(30):
    step()
    if number in (0, 2, 4, 8, 14, 20):
        graph = make_fx(loss)(torch.ones(2, 8)).graph
        print(number, [str(node.target) for node in graph.nodes])
corpus_state.report(model=model, recording_over=True)
