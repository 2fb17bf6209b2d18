"""PyTorch's own MemTracker follows the first steps."""

import corpus_state
import torch
from torch.distributed._tools.mem_tracker import MemTracker

torch.manual_seed(52)
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128)).cuda()
optimizer = torch.optim.Adam(model.parameters())
tracker = MemTracker()
tracker.track_external(model, optimizer)
for step in range(30):
    batch = torch.randn(64, 128, device="cuda")
    if step == 1:
        with tracker:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cuda:0")]
        print({str(kind): size for kind, size in peak.items()})
        continue
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
corpus_state.report(model=model)
