# Modules nested so deep that they just fit.
import corpus_state
import torch


class Layer(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


corpus_state.seed()
model = torch.nn.Linear(4, 4)
for _ in range(240):
    model = Layer(model)
weights = next(model.parameters())
optimizer = torch.optim.SGD([weights], lr=0.1)
for number in range(30):
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
print(f"{weights.sum().item():.6f}")
corpus_state.report(recording_over=True)
