# Full backward pre-hooks that change gradients, on containers and on leaves.
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


def halve(module, gradients):
    return tuple(one / 2 if one is not None else None for one in gradients)


handles = [one.register_full_backward_pre_hook(halve, prepend=True) for one in model.modules()]
losses = [step() for _ in range(12)]
handles.pop().remove()
losses += [step() for _ in range(12)]
print(f"{losses[11]:.6f} {losses[-1]:.6f}", [len(one._backward_pre_hooks) for one in model.modules()])
corpus_state.report(model=model, recording_over=True)
