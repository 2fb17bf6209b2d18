# An import hook of its own, in front of all others.
import sys

import corpus_state


class Finder:
    asked = []

    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "torch.nn", "no_such_thing"):
            self.asked.append(name)
        return None


sys.meta_path.insert(0, Finder())
import torch

try:
    import no_such_thing  # noqa: F401
except ImportError as error:
    print(error)
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(Finder.asked)
corpus_state.report(model=model, recording_over=True)
