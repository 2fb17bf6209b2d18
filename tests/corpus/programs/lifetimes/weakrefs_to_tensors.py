# Weak references tell when outputs, gradients and graphs die: at once.
import weakref

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
seen = []
for number in range(30):
    optimizer.zero_grad()
    data = torch.randn(8, 8)
    hidden = model[:2](data)
    out = model[2](hidden)
    loss = out.square().mean()
    references = {name: weakref.ref(one) for name, one in (("data", data), ("hidden", hidden), ("out", out))}
    node = weakref.ref(loss.grad_fn) if hasattr(type(loss.grad_fn), "__weakref__") else lambda: None
    del data, hidden, out
    alive = [name for name, one in references.items() if one() is not None]
    loss.backward()
    gradient = weakref.ref(model[0].weight.grad)
    optimizer.step()
    del loss
    after = [name for name, one in references.items() if one() is not None]
    optimizer.zero_grad()
    seen.append((tuple(alive), tuple(after), gradient() is None, node() is None))
print(sorted(set(seen)))
corpus_state.report(model=model, recording_over=True)
