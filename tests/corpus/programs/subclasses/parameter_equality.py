# Parameters whose == and hash are their own.
import corpus_state
import torch


class Named(torch.nn.Parameter):
    asked = 0

    def __eq__(self, other):
        Named.asked += 1
        return True

    def __hash__(self):
        Named.asked += 1
        return id(self)


corpus_state.seed()
model = torch.nn.Linear(8, 4)
model.weight, model.bias = Named(model.weight.detach()), Named(model.bias.detach())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
made = Named.asked


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(made, Named.asked)
corpus_state.report(model=model, recording_over=True)
