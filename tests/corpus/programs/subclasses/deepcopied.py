# Subclasses and parameters that are copied deeply by their own rule.
import copy

import corpus_state
import torch


class Kept(torch.nn.Parameter):
    copies = 0

    def __deepcopy__(self, memo):
        Kept.copies += 1
        return Kept(self.detach().clone())


corpus_state.seed()
model = torch.nn.Linear(8, 4)
model.weight = Kept(model.weight.detach())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    step()
    if number % 5 == 0:
        other = copy.deepcopy(model)
print(Kept.copies, torch.equal(other.weight, model.weight))
corpus_state.report(model=model, recording_over=True)
