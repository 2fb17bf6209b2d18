# The program wraps the step of an optimizer's class and of an instance.
import corpus_state
import torch

calls = []

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inner = torch.optim.SGD.step


def counted(self, *args, **kwargs):
    calls.append("class")
    return inner(self, *args, **kwargs)


torch.optim.SGD.step = counted
own = optimizer.step
optimizer.step = lambda *args: calls.append("instance") or own(*args)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
torch.optim.SGD.step = inner
print(len(calls), set(calls))
corpus_state.report(model=model)
