# LBFGS closures with a strong Wolfe search, and a plain optimizer with a closure that counts its calls.
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


calls = []


def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    calls.append(round(loss.item(), 6))
    return loss


second = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
for number in range(24):
    if number % 4 == 3:
        second.step(closure)
    else:
        optimizer.step(closure)
print(len(calls), calls[-1])
corpus_state.report(model=model, recording_over=True)
