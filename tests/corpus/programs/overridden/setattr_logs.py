# Every setting and deletion of a module's attributes is logged.
import corpus_state
import torch


class Logged(torch.nn.Linear):
    names = []

    def __setattr__(self, name, value):
        Logged.names.append(name)
        super().__setattr__(name, value)

    def __delattr__(self, name):
        Logged.names.append("del " + name)
        super().__delattr__(name)


corpus_state.seed()
model = Logged(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(Logged.names, sorted(vars(model)))
corpus_state.report(model=model, recording_over=True)
