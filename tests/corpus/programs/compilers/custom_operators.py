# Operators of its own by torch.library, with autograd and fake kernels, called in modules.
import corpus_state
import torch


@torch.library.custom_op("corpus::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, grad: grad * 2)


class Twice(torch.nn.Module):
    def forward(self, x):
        return twice(x)


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.append(Twice())


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(torch.ops.corpus.twice(torch.ones(2)))
corpus_state.report(model=model, recording_over=True)
