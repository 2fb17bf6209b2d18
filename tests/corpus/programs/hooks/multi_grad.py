# A hook for several gradients at once, and hooks on nodes of the graph.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
seen = []
for number in range(30):
    optimizer.zero_grad()
    parameters = list(model.parameters())
    handle = torch.autograd.graph.register_multi_grad_hook(parameters, lambda grads: seen.append(len(grads)))
    loss = model(torch.randn(8, 8)).square().mean()
    loss.grad_fn.register_hook(lambda inputs, outputs: seen.append("after"))
    loss.grad_fn.register_prehook(lambda outputs: seen.append("before"))
    loss.grad_fn.metadata["mine"] = number
    loss.backward()
    handle.remove()
    optimizer.step()
    seen.append(loss.grad_fn.metadata)
print(seen)
corpus_state.report(model=model, recording_over=True)
