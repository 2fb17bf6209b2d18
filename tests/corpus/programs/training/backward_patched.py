# The program wraps torch.autograd.backward and Tensor.backward, in the window and in the timing pass.
import corpus_state
import torch

calls = []

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def wrapping(name, inner):
    def backward(*args, **kwargs):
        calls.append(name)
        return inner(*args, **kwargs)

    return backward


for number in range(30):
    if number in (1, 4, 8, 14, 20):
        kept = torch.autograd.backward, torch.Tensor.backward
        torch.autograd.backward = wrapping("autograd", kept[0])
        torch.Tensor.backward = wrapping("tensor", kept[1])
        step()
        torch.autograd.backward, torch.Tensor.backward = kept
    step()
print(calls)
corpus_state.report(model=model, recording_over=True)
