# Modules and tensors with __del__ tell when they go.
import corpus_state
import torch


class Mortal(torch.nn.Linear):
    gone = []

    def __init__(self, number):
        super().__init__(8, 4)
        self.number = number

    def __del__(self):
        Mortal.gone.append(self.number)


corpus_state.seed()
survivor = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(survivor.parameters(), lr=0.05)
for number in range(30):
    model = Mortal(number)
    optimizer.zero_grad()
    (model(torch.randn(8, 8)) + survivor(torch.randn(8, 8))).square().mean().backward()
    optimizer.step()
    if number in (0, 2, 3, 4, 5, 14, 15, 20):
        print(number, Mortal.gone)
corpus_state.report(model=survivor, recording_over=True)
del model
print(Mortal.gone)
