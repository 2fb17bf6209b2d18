# Hooks on the nodes that accumulate gradients, as data-parallel wrappers set them.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


order, nodes = [], []
for name, parameter in model.named_parameters():
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_, name=name: order.append(name))
    nodes.append(node)
for _ in range(30):
    step()
print(len(order), order[:4])
corpus_state.report(model=model, recording_over=True)
