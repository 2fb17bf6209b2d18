# Reference counts of the model, its weights, inputs and outputs, in every stage.
import sys

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
seen = set()
for number in range(30):
    optimizer.zero_grad()
    data = torch.randn(8, 8)
    out = model(data)
    loss = out.square().mean()
    loss.backward()
    counted = (model, model[0], model[0].weight, model[0].weight.grad, data, out, loss, optimizer)
    del counted
    seen.add(tuple(sys.getrefcount(one) for one in (data, out, loss, model[0].weight.grad)))
    optimizer.step()
print(sorted(seen))
print([sys.getrefcount(one) for one in (model, model[0], model[0].weight, optimizer)])
corpus_state.report(model=model, recording_over=True)
