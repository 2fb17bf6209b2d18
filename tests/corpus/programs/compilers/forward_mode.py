# Forward-mode derivatives: jvp, dual numbers and linearize.
import corpus_state
import torch
import torch.autograd.forward_ad as forward_ad
from torch.func import jvp, linearize

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(24):
    step()
    if number in (0, 2, 4, 8, 14, 20):
        x, tangent = torch.ones(1, 8), torch.full((1, 8), 0.5)
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(model(forward_ad.make_dual(x, tangent)))
        out, pushed = jvp(model, (x,), (tangent,))
        _, line = linearize(model, x)
        print(number, torch.allclose(dual.tangent, pushed), torch.allclose(line(tangent), pushed))
corpus_state.report(model=model, recording_over=True)
