# Modules that are equal to everything, with a hash that is counted and one that raises.
import corpus_state
import torch


class Equal(torch.nn.Linear):
    asked = []

    def __eq__(self, other):
        Equal.asked.append("eq")
        return True

    def __hash__(self):
        Equal.asked.append("hash")
        return 1


class Unhashable(torch.nn.Linear):
    __hash__ = None


corpus_state.seed()
first, second, third = Equal(8, 8), Unhashable(8, 8), Equal(8, 4)
parameters = [*first._parameters.values(), *second._parameters.values(), *third._parameters.values()]
optimizer = torch.optim.SGD(parameters, lr=0.05)


def model(x):
    return third(second(first(x)).relu())


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(Equal.asked)
corpus_state.report(model=parameters, recording_over=True)
