# Jagged nested tensors as inputs and outputs of modules, with lengths that change.
import corpus_state
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.inner(x))


corpus_state.seed()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(24):
    rows = [torch.randn(length, 8) for length in (2, 3 + number % 3)]
    batch = torch.nested.nested_tensor(rows, layout=torch.jagged)
    optimizer.zero_grad()
    result = model(batch)
    result.values().square().mean().backward()
    optimizer.step()
    if number % 8 == 0:
        strided = model.inner(torch.nested.nested_tensor(rows))
        print(batch.shape, result.shape[1], strided.size(0), strided.is_nested)
corpus_state.report(model=model)
