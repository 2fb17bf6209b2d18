"""The program puts words of its own on the allocations of each phase, and reads them back."""

import collections

import corpus_state
import torch

torch.manual_seed(20)
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(30):
    if step == 5:
        torch.cuda.memory._record_memory_history(context=None, max_entries=10_000)
    torch.cuda.memory._set_memory_metadata(f"forward {step}")
    loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    word = torch.cuda.memory._get_memory_metadata()
    torch.cuda.memory._set_memory_metadata(f"optimizer {step}")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step < 6:
        print(word, "|", torch.cuda.memory._get_memory_metadata())
    if step == 7:
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        print(sorted(collections.Counter(event.get("user_metadata") for event in events).items()))
        torch.cuda.memory._record_memory_history(enabled=None)
corpus_state.report(model=model)
