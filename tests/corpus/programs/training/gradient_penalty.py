# Double backward: a penalty on the gradient's norm.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    optimizer.zero_grad()
    data = torch.randn(8, 8, requires_grad=True)
    out = torch.tanh(model(data)).sum()
    (gradient,) = torch.autograd.grad(out, data, create_graph=True)
    ((gradient.norm(dim=1) - 1) ** 2).mean().backward()
    optimizer.step()
corpus_state.report(model=model, recording_over=True)
