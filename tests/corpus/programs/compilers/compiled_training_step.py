# allowed: notes
# torch.compile of a whole training step: forward, backward and optimizer.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


@torch.compile(backend="eager")
def train(batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss


for number in range(30):
    loss = train(torch.randn(8, 8))
from torch._dynamo.utils import counters

print(round(loss.item(), 6), dict(counters["stats"]), dict(counters["graph_break"]))
corpus_state.report(model=model)
