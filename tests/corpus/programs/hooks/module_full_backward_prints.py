# Full backward hooks of nested modules tell names and norms.
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


for name, module in model.named_modules():
    module.register_full_backward_hook(
        lambda m, i, o, name=name: print(name or "all", f"{o[0].norm():.6f}", [g is None for g in i])
    )
for _ in range(30):
    step()
corpus_state.report(model=model, recording_over=True)
