# An optimizer that cannot be hashed, as a dataclass with an __eq__ is.
import corpus_state
import torch


class Plain(torch.optim.SGD):
    def __eq__(self, other):
        return NotImplemented


corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = Plain(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(Plain.__hash__)
corpus_state.report(model=model, recording_over=True)
