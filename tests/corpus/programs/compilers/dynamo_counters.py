"""Dynamo's own figures: graphs, frames, breaks, recompilations, and what explain() says."""
# environment: TORCHINDUCTOR_FORCE_DISABLE_CACHES=1

import corpus_state
import torch
from torch._dynamo.utils import counters

torch.manual_seed(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x):
        x = self.fc(x)
        if x.sum() > 0:
            x = x * 2
        print("broken")
        return x.relu()


model = Net()
explained = torch._dynamo.explain(model)(torch.ones(2, 8))
print(explained.graph_count, explained.graph_break_count, explained.op_count, len(explained.break_reasons))
torch._dynamo.reset()
counters.clear()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(14):
    compiled(torch.randn(2 + step % 4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
for name in sorted(counters):
    if name not in ("inductor",):
        print(name, sorted((str(key)[:60], value) for key, value in counters[name].items()))
corpus_state.report(model=model)
