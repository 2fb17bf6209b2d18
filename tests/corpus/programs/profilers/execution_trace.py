"""The program writes an execution trace of its own in some steps."""

import collections
import json
import tempfile
from pathlib import Path

import corpus_state
import torch
from torch.profiler import ExecutionTraceObserver

torch.manual_seed(9)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
place = Path(tempfile.mkdtemp()) / "trace.json"
observer = ExecutionTraceObserver()
observer.register_callback(str(place))
for step in range(12):
    if step in (1, 5):
        observer.start()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (2, 6):
        observer.stop()
observer.unregister_callback()
nodes = json.loads(place.read_text())["nodes"]
names = collections.Counter(node["name"] for node in nodes)
print({name: count for name, count in sorted(names.items()) if name.startswith("aten::")})
corpus_state.report(model=model)
