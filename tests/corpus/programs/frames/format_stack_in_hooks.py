# Prints the stack in hooks, as debuggers do.
# allowed: walks frames
import traceback

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


model[0].register_forward_hook(
    lambda *_: print("".join(traceback.format_stack())) if number in (1, 4, 14, 20) else None
)
for number in range(24):
    step()
corpus_state.report(model=model, recording_over=True)
