"""Processes are forked in the middle of forward, backward and step, and train on or exec."""

import os
import sys

import corpus_state
import torch

torch.manual_seed(30)


def fork(action):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            action()
        finally:
            sys.stdout.flush()
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        if step in (1, 5):
            print("forward", fork(lambda: print("child", self.fc(torch.ones(1, 4)).shape)))
        return self.fc(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def in_backward(grad):
    if step in (1, 6):
        print("backward", fork(lambda: print("child", grad.shape)))


def in_step(*_):
    if step in (2, 7):
        print("step", fork(lambda: os.execv(sys.executable, [sys.executable, "-c", "print('executed')"])))


optimizer.register_step_post_hook(in_step)
for step in range(14):
    y = model(torch.randn(2, 4))
    y.register_hook(in_backward)
    y.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
corpus_state.report(model=model)
