# Replaces the standard streams by objects that write twice, and leaves them so.
import sys

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


class Twice:
    def __init__(self, stream, name):
        self.stream, self.file = stream, open(name, "w")

    def write(self, text):
        self.file.write(text)
        return self.stream.write(text)

    def flush(self):
        self.stream.flush()
        self.file.flush()

    def __getattr__(self, name):
        return getattr(self.stream, name)


sys.stdout, sys.stderr = Twice(sys.stdout, "out.log"), Twice(sys.stderr, "err.log")
for number in range(30):
    print(number, step())
print("to the other stream", file=sys.stderr)
sys.stdout.flush()
sys.stderr.flush()
corpus_state.report(model=model, recording_over=True)
