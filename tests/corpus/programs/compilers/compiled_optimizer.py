# also: --no-flight-recorder
# alone: yes
# torch.compile of the optimizer's step alone: graphs, graph breaks and warnings are those of the program.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


@torch.compile(backend="eager")
def step():
    optimizer.step()


for number in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 8)).square().mean().backward()
    step()
from torch._dynamo.utils import counters

print(dict(counters["stats"]), dict(counters["graph_break"]))
corpus_state.report(model=model)
