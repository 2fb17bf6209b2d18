# Global hooks on the backward of all modules, one of which changes gradients.
import corpus_state
import torch
from torch.nn.modules import module as hooks

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


order = []
hooks.register_module_full_backward_pre_hook(lambda one, grads: order.append("pre " + type(one).__name__))
hooks.register_module_full_backward_hook(
    lambda one, inputs, grads: order.append("after") or tuple(None if g is None else g * 0.5 for g in inputs)
)
for _ in range(30):
    step()
print(len(order), order[:8])
corpus_state.report(model=model, recording_over=True)
