# Forward hooks that see keyword arguments, and one that is called although forward raises.
import corpus_state
import torch


class Picky(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x, *, scale=1.0):
        if scale > 2:
            raise ValueError("too large")
        return self.inner(x) * scale


corpus_state.seed()
model = Picky()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
model.register_forward_pre_hook(lambda m, a, k: (a, {**k, "scale": k["scale"] + 0.5}), with_kwargs=True)
model.register_forward_hook(lambda m, a, k, out: seen.append(k["scale"]), with_kwargs=True, always_call=True)
for number in range(30):
    try:
        model(torch.ones(2, 4), scale=number % 3).sum().backward()
    except ValueError as error:
        seen.append(str(error))
    optimizer.step()
    optimizer.zero_grad()
print(seen)
corpus_state.report(model=model, recording_over=True)
