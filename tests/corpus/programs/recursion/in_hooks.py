# A forward hook that recurses to the limit, is caught, and goes on.
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


depths = []


def sink(number=0):
    depths[-1] = number
    sink(number + 1)


def hook(module, args, out):
    depths.append(0)
    try:
        sink()
    except RecursionError:
        pass


model[1].register_forward_hook(hook)
for _ in range(30):
    step()
corpus_state.report(model=model, recording_over=True, **{f"depth_{n}": depth for n, depth in enumerate(depths)})
