# Generators and contexts that are open at the end clean up and print.
# status: 1
import contextlib

import corpus_state
import torch


def batches():
    try:
        while True:
            yield torch.randn(8, 8)
    finally:
        print("no more batches")


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with contextlib.ExitStack() as stack:
    stack.callback(print, "stack unwound")
    for number, batch in enumerate(batches()):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if number == 2:
            raise LookupError("enough")
