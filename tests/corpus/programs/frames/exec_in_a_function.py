# Defines variables by exec in the function that trains, and reads them by eval.
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


def train(text):
    exec(text)
    before = eval("rate * 2")
    for _ in range(30):
        step()
    return before, eval("rate * 2")


print(train("rate = 0.5"))
corpus_state.report(model=model, recording_over=True)
