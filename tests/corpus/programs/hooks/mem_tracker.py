# torch's own MemTracker, which hooks optimizers and modules, around a whole training.
import corpus_state
import torch
from torch.distributed._tools.mem_tracker import MemTracker

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
tracker = MemTracker()
tracker.track_external(model, optimizer)
with tracker:
    for number in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        tracker.reset_mod_stats()
print(sorted(str(device) for device in tracker.get_tracker_snapshot("peak")))
print(sorted(tracker.get_tracker_snapshot("peak")[torch.device("cpu")].items(), key=str))
corpus_state.report(model=model, recording_over=True)
