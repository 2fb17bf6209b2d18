# Many calls of torch.autograd.grad, with unused inputs and several outputs.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    data = torch.randn(4, 8, requires_grad=True)
    out = model(data)
    rows = [torch.autograd.grad(out[:, one].sum(), data, retain_graph=True)[0] for one in range(4)]
    unused = torch.autograd.grad(out.sum(), [data, torch.ones(1, requires_grad=True)], allow_unused=True)
    optimizer.zero_grad()
    optimizer.step()
print(unused[1], sum(one.sum().item() for one in rows))
corpus_state.report(model=model, recording_over=True)
