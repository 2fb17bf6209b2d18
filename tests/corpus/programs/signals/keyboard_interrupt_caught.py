# Ctrl-C in the middle of a step is caught, and training goes on.
import signal

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


caught = []


@torch.no_grad()
def interrupt(module, args):
    if count in (1, 4, 5, 8, 14, 15, 20):
        signal.raise_signal(signal.SIGINT)


model[1].register_forward_pre_hook(interrupt)
for count in range(30):
    try:
        step()
    except KeyboardInterrupt:
        caught.append(count)
print(caught)
corpus_state.report(model=model, recording_over=True)
