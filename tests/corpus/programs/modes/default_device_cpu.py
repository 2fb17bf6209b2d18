# A default device is set once, before everything.
import corpus_state
import torch

torch.set_default_device("cpu")
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
print(torch.get_default_device(), torch.randn(3))
torch.set_default_device(None)
corpus_state.report(model=model, recording_over=True)
