# Modules with slots, a descriptor that counts, and attributes found by __getattr__ of a mixin.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


class Counted:
    def __init__(self):
        self.reads = 0

    def __get__(self, module, kind):
        self.reads += 1
        return 0.5


class Lazy:
    def __getattr__(self, name):
        if name.startswith("magic_"):
            return len(name)
        return super().__getattr__(name)


class Block(Lazy, torch.nn.Module):
    __slots__ = ("scale_by",)
    factor = Counted()

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.scale_by = 2.0

    def forward(self, inputs):
        return self.inner(inputs) * self.factor * self.scale_by + self.magic_seven


model.append(Block())
optimizer.add_param_group({"params": model[3].parameters()})
losses = [step() for _ in range(24)]
print(f"{losses[-1]:.6f}", vars(Block)["factor"].reads)
corpus_state.report(model=model, recording_over=True)
