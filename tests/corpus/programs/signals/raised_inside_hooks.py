# A signal arrives inside hooks of backward and of the optimizer; its handler raises.
import os
import signal

import corpus_state
import torch


class Late(Exception):
    pass


def raise_late(*_):
    raise Late


signal.signal(signal.SIGUSR1, raise_late)
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


places = {"grad": False, "step": False}


def arm(place):
    if places[place]:
        os.kill(os.getpid(), signal.SIGUSR1)


model[0].weight.register_hook(lambda grad: arm("grad"))
optimizer.register_step_pre_hook(lambda *_: arm("step"))
for number in range(40):
    places["grad"], places["step"] = number % 5 == 1, number % 5 == 3
    try:
        step()
    except Late:
        print("late in step", number)
corpus_state.report(model=model, recording_over=True)
