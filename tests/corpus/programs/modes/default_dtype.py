# Another default dtype, changed in the middle.
import corpus_state
import torch

torch.set_default_dtype(torch.float64)
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
torch.set_default_dtype(torch.float32)
other = torch.nn.Linear(2, 2)
print(model[0].weight.dtype, other.weight.dtype)
corpus_state.report(model=model, recording_over=True)
