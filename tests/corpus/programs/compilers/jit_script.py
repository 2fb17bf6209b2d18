# torch.jit.script of a model in every stage.
import corpus_state
import torch


class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)

    def forward(self, x, flip: bool = False):
        out = self.inner(x)
        if flip:
            out = -out
        return out


corpus_state.seed()
model = Branching()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    step()
    if number in (0, 4, 8, 14, 20):
        scripted = torch.jit.script(model)
        scripted.save(f"{number}.pt")
        print(number, torch.jit.load(f"{number}.pt")(torch.ones(1, 8), True).shape)
corpus_state.report(model=model, recording_over=True)
