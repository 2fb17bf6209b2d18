# A forward hook raises in several stages; what is printed is the traceback.
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


count = 0


def fragile(module, args):
    global count
    count += 1
    if count in (1, 3, 4, 5, 9, 14, 15, 20):
        raise LookupError(f"call {count}")


model[1].register_forward_pre_hook(fragile)
for _ in range(30):
    try:
        step()
    except LookupError:
        traceback.print_exc()
corpus_state.report(model=model, recording_over=True)
