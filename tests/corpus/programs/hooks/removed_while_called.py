# Forward hooks that add and remove hooks while they are called.
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


def add(module, args, out):
    handle = module.register_forward_hook(lambda *_: seen.append("inner"))
    seen.append("outer")
    handle.remove()


model[0].register_forward_hook(add)
first = model[2].register_forward_pre_hook(lambda *_: first.remove())
for _ in range(30):
    step()
print(len(seen), set(seen))
corpus_state.report(model=model, recording_over=True)
