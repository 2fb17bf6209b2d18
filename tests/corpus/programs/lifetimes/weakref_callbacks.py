# Callbacks of weak references and finalizers, in the order in which objects die.
import weakref

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
order = []
for number in range(30):
    optimizer.zero_grad()
    data = torch.randn(8, 8)
    layer = torch.nn.Linear(8, 8)
    weakref.finalize(layer, order.append, "layer")
    reference = weakref.ref(data, lambda _: order.append("data"))
    out = model(layer(data))
    weakref.finalize(out, order.append, "out")
    out.square().mean().backward()
    optimizer.step()
    del layer
    order.append("-")
    del data
    order.append("-")
    del out
    order.append(".")
print("".join(one[0] for one in order))
corpus_state.report(model=model, recording_over=True)
