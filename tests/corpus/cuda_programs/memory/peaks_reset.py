"""The program resets peaks and accumulated counters itself, in every phase of every step."""

import corpus_state
import torch

torch.manual_seed(25)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(24):
    peaks = []
    loss = model(torch.randn(256, 256, device="cuda")).square().mean()
    for act in (loss.backward, optimizer.step, optimizer.zero_grad):
        peaks.append(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        act()
    peaks.append(torch.cuda.max_memory_reserved())
    if step in (2, 3, 13):
        torch.cuda.reset_accumulated_memory_stats()
    print(step, peaks, torch.cuda.memory_stats()["allocation.all.allocated"], flush=True)
corpus_state.report(model=model)
