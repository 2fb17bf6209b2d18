# A compiled model whose blocks override __call__ and call super().__call__: it is compiled once.
import corpus_state
import torch
from torch import nn

corpus_state.seed()
graphs = []


def backend(graph, inputs):
    graphs.append(len(inputs))
    return graph.forward


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 8)

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)

    def forward(self, x):
        return torch.relu(self.line(x)) + x


model = nn.Sequential(Block(), Block(), nn.Linear(8, 1))
model.compile(backend=backend)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, len(graphs), round(loss.item(), 5))
corpus_state.report(model=model, recording_over=True)
