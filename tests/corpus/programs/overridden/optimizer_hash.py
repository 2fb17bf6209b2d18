# An optimizer whose hash is counted, and which is equal to everything.
import corpus_state
import torch


class Hashed(torch.optim.SGD):
    asked = []

    def __hash__(self):
        Hashed.asked.append("hash")
        return 7

    def __eq__(self, other):
        Hashed.asked.append("eq")
        return True


corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = Hashed(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(Hashed.asked)
corpus_state.report(model=model, recording_over=True)
