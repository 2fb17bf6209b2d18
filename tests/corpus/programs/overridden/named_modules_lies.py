# named_modules yields modules that are made anew at each call.
import corpus_state
import torch


class Lying(torch.nn.Module):
    made = 0

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        yield from super().named_modules(memo, prefix, remove_duplicate)
        Lying.made += 1
        yield "ghost", torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x)


corpus_state.seed()
model = Lying()
optimizer = torch.optim.SGD(model.inner.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(Lying.made, torch.randn(2))
corpus_state.report(model=model, recording_over=True)
