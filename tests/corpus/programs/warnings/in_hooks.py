# Warnings out of hooks of gradients, backward and optimizers.
import warnings

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


warnings.simplefilter("always")
model[0].weight.register_hook(lambda grad: warnings.warn("gradient", stacklevel=2) if loud else None)
optimizer.register_step_post_hook(lambda *_: warnings.warn("step", stacklevel=3) if loud else None)
model[1].register_forward_hook(lambda *_: warnings.warn("forward", stacklevel=3) if loud else None)
for number in range(24):
    loud = number in (0, 2, 4, 8, 14, 20)
    step()
warnings.simplefilter("ignore")
loud = False
corpus_state.report(model=model, recording_over=True)
