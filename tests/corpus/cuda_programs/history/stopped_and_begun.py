"""A history is switched off that was never on, then on, cleared, and off: all in the first three steps."""

import corpus_state
import torch

torch.manual_seed(18)
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
switch = torch.cuda.memory._record_memory_history
counts = []
for step in range(30):
    if step == 1:
        torch.cuda.memory._record_memory_history(enabled=None)
    if step == 2:
        switch(context=None, max_entries=10_000)
    if step == 4:
        switch(context=None, max_entries=10_000, clear_history=True)
    if step == 6:
        switch(enabled=None)
    model(torch.randn(64, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    counts.append(sum(event["action"] == "alloc" for event in torch.cuda.memory._snapshot()["device_traces"][0]))
print(counts)
corpus_state.report(model=model)
