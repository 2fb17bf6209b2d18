# Hooks of graph nodes, before and after them, and metadata kept on the nodes.
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


seen = []


def one_step(number):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    node = loss.grad_fn
    while node is not None:
        node.metadata["number"] = number
        node.register_prehook(lambda gradients, node=node: seen.append((node.name(), "before")))
        node.register_hook(lambda inputs, outputs, node=node: seen.append((node.name(), node.metadata["number"])))
        node = node.next_functions[0][0] if node.next_functions else None
    loss.backward()
    optimizer.step()


for number in range(24):
    one_step(number)
print(len(seen), seen[:6], seen[-2:])
corpus_state.report(model=model, recording_over=True)
