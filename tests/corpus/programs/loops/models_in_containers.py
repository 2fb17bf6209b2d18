# An ensemble in a list with an optimizer for each, heads in a dictionary, and one optimizer for all heads.
import corpus_state
import torch
from torch import nn

corpus_state.seed()
models = [nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)) for _ in range(3)]
heads = {"mean": nn.Linear(4, 1), "variance": nn.Linear(4, 1)}
optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in models]
of_heads = torch.optim.SGD([weight for head in heads.values() for weight in head.parameters()], lr=1e-2, momentum=0.9)
for _ in range(12):
    x, y = torch.randn(8, 8), torch.randint(0, 4, (8,))
    outputs = []
    for model, optimizer in zip(models, optimizers):
        output = model(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(output, y).backward()
        optimizer.step()
        outputs.append(output.detach())
    together = torch.stack(outputs).mean(0)
    variance = heads["variance"](together).exp()
    loss = nn.functional.gaussian_nll_loss(heads["mean"](together)[:, 0], y.float(), variance[:, 0])
    of_heads.zero_grad()
    loss.backward()
    of_heads.step()
print(f"{loss.item():.6f}", sorted(heads))
corpus_state.report(model=models[2], recording_over=True)
