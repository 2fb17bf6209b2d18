# An object that comes back to life in __del__, with a tensor in it.
import corpus_state
import torch


class Phoenix:
    nest = []

    def __init__(self):
        self.tensor = torch.ones(3, requires_grad=True)

    def __del__(self):
        Phoenix.nest.append(self)


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    bird = Phoenix()
    (bird.tensor * 2).sum().backward()
    del bird
    step()
print(len(Phoenix.nest), Phoenix.nest[0].tensor.grad.tolist())
corpus_state.report(model=model, recording_over=True)
