"""The functions of the memory history are imported by name, and called in the second step."""

import corpus_state
import torch
from torch.cuda.memory import _record_memory_history, _snapshot

torch.manual_seed(17)
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(30):
    if step == 1:
        _record_memory_history("all", context=None, max_entries=50_000)
    model(torch.randn(64, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (1, 2, 5):
        events = [(event["action"], event["size"]) for event in _snapshot()["device_traces"][0]]
        print(step, len(events), events[:4], events[-4:])
_record_memory_history(enabled=None)
corpus_state.report(model=model)
