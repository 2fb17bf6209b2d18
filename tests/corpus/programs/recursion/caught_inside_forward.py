# A forward that runs into the limit, catches it there, and computes something else.
import corpus_state
import torch


class Careful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.caught = 0

    def forward(self, x, depth=0):
        try:
            return self(x, depth + 1)
        except RecursionError:
            self.caught += 1
            if depth > 100:
                raise
            return self.inner(x)


corpus_state.seed()
model = Careful()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
corpus_state.report(model=model.inner, recording_over=True, depth=model.caught // 30)
