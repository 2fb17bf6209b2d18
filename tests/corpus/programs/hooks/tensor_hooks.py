# Hooks on tensors: they scale gradients, are removed, and see retained gradients.
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
handle = model[0].weight.register_hook(lambda grad: seen.append(1) or grad * 2)
for number in range(30):
    if number == 4:
        handle.remove()
    optimizer.zero_grad()
    hidden = model[:2](torch.randn(8, 8))
    hidden.retain_grad()
    hidden.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    model[2](hidden).square().mean().backward()
    optimizer.step()
    seen.append(round(hidden.grad.abs().max().item(), 6))
print(seen)
corpus_state.report(model=model, recording_over=True)
