"""Under a limit of its own the program runs out of memory in some steps, catches it and goes on."""
# also: --steps 1:100000

import re

import corpus_state
import torch

torch.manual_seed(28)
torch.cuda.set_per_process_memory_fraction(0.01)
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(40):
    rows = 2_000_000 if step in (0, 1, 2, 9, 10, 30) else 500
    try:
        model(torch.ones(rows, 1024, device="cuda")).square().mean().backward()
    except torch.cuda.OutOfMemoryError as error:
        print(step, type(error).__name__, *re.findall(r"Tried to allocate [\d.]+ \w+", str(error)))
        optimizer.zero_grad()
        continue
    optimizer.step()
    optimizer.zero_grad()
stats = torch.cuda.memory_stats()
print(stats["num_ooms"], stats["num_alloc_retries"], torch.cuda.get_per_process_memory_fraction())
corpus_state.report(model=model)
