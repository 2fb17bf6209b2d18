# Lists, dictionaries and tuples as inputs and outputs whose iteration is counted; generators that are used up.
import corpus_state
import torch


class Counted(list):
    walks = 0

    def __iter__(self):
        Counted.walks += 1
        return super().__iter__()


class Values(dict):
    walks = 0

    def values(self):
        Values.walks += 1
        return super().values()

    def items(self):
        Values.walks += 1
        return super().items()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)

    def forward(self, batch, table, rows):
        out = self.inner(batch[0] + table["x"] + sum(rows))
        return Values(out=out), (one for one in (out, out)), Counted([out])


corpus_state.seed()
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    optimizer.zero_grad()
    rows = (torch.ones(8) for _ in range(2))
    out = model(Counted([torch.randn(8, 8)]), Values(x=torch.ones(8)), rows)
    (out[0]["out"].square().mean() + sum(one.sum() for one in out[1])).backward()
    optimizer.step()
print(Counted.walks, Values.walks)
corpus_state.report(model=model, recording_over=True)
