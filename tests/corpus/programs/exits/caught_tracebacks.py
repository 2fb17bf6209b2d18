# Tracebacks of caught exceptions in every stage: only the program's and torch's frames.
import traceback

import corpus_state
import torch


class Failing(torch.nn.Module):
    def forward(self, x):
        if fails:
            raise ValueError("here")
        return x


class Below(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        if fails_below:
            raise ValueError("there")
        return grad


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.append(torch.nn.Sequential(Failing()))


def step():
    optimizer.zero_grad()
    Below.apply(model(torch.randn(8, 8))).square().mean().backward()
    optimizer.step()


for number in range(30):
    fails, fails_below = number in (0, 3, 15, 20), number in (1, 4, 9, 14, 22)
    try:
        step()
    except ValueError as error:
        traceback.print_exc()
        print(len(traceback.extract_tb(error.__traceback__)))
fails = fails_below = False
corpus_state.report(model=model, recording_over=True)
