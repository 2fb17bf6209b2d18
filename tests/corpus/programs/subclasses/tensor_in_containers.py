# Subclasses that pretend to be containers: __iter__ and __getitem__ count.
import corpus_state
import torch


class Rows(torch.Tensor):
    asked = []

    def __iter__(self):
        Rows.asked.append("iter")
        return iter(self.unbind())

    def __getitem__(self, key):
        Rows.asked.append("item")
        return super().__getitem__(key)

    def __bool__(self):
        Rows.asked.append("bool")
        return True

    def __repr__(self):
        Rows.asked.append("repr")
        return "Rows"


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 8).as_subclass(Rows)).square().mean().backward()
    optimizer.step()
print(Rows.asked)
corpus_state.report(model=model, recording_over=True)
