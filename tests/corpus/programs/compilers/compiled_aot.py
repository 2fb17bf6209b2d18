# torch.compile with AOT autograd, of a function that calls a module, and graph breaks.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


@torch.compile(backend="aot_eager")
def forward(x):
    hidden = model[:2](x)
    if hidden.sum().item() > 1e9:
        print("never")
    return model[2](hidden).square().mean()


for number in range(24):
    optimizer.zero_grad()
    forward(torch.randn(8, 8)).backward()
    optimizer.step()
from torch._dynamo.utils import counters

print(dict(counters["stats"]), sum(counters["graph_break"].values()))
corpus_state.report(model=model, recording_over=True)
