# Saved tensors go through hooks that count and pack them.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
counts = {"pack": 0, "unpack": 0, "bytes": 0}


def pack(tensor):
    counts["pack"] += 1
    counts["bytes"] += tensor.nbytes
    return tensor.detach().clone()


def unpack(packed):
    counts["unpack"] += 1
    return packed


for _ in range(30):
    optimizer.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
print(counts)
corpus_state.report(model=model, recording_over=True)
