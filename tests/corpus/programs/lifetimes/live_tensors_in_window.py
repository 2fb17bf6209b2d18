# Counts tensors of one odd shape, as leak hunters do, in the first steps.
import gc

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
counts = []
for number in range(24):
    optimizer.zero_grad()
    data = torch.randn(77, 8)
    out = model(data)
    out.square().mean().backward()
    optimizer.step()
    del data, out
    counts.append(sum(type(one) is torch.Tensor and one.shape[:1] == (77,) for one in gc.get_objects()))
print(counts)
corpus_state.report(model=model, recording_over=True)
