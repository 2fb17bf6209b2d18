# Keeps what locals() returned in the function that trains.
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


def train(steps, rate=0.1, name="first"):
    options = locals()
    losses = [step() for _ in range(steps)]
    print(sorted(options), options["rate"], options.get("losses") is None)
    return losses


print(train(30))
corpus_state.report(model=model, recording_over=True)
