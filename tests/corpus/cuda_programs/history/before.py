"""The program's own memory history runs from before the first step."""

import hashlib
import pickle
from pathlib import Path

import corpus_state
import torch

LAST = 12


def digest(snapshot: dict) -> str:
    """Return how many events the history has, and a hash of their actions, sizes and places in this file."""
    rows = [
        (
            event["action"],
            event["size"],
            [(frame["line"], frame["name"]) for frame in event.get("frames", ()) if frame["filename"] == __file__],
        )
        for trace in snapshot["device_traces"]
        for event in trace
        if event["action"] != "snapshot"
    ]
    return f"{len(rows)} events {hashlib.sha256(repr(rows).encode()).hexdigest()[:16]}"


torch.manual_seed(16)
torch.cuda.memory._record_memory_history(stacks="python", max_entries=100_000)
model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(LAST + 10):
    model(torch.randn(64, 128, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == LAST:
        torch.cuda.memory._dump_snapshot("own.pickle")
        torch.cuda.memory._record_memory_history(enabled=None)
place = Path("own.pickle")
snapshot = pickle.loads(place.read_bytes())
place.unlink()  # it holds times and addresses
print(digest(snapshot), len(snapshot["segments"]))
print("after:", digest(torch.cuda.memory._snapshot()))
corpus_state.report(model=model)
