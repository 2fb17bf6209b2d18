# A child forked long after the recording has ended runs to its own normal end.
import os
import sys

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
child = os.fork()
if child == 0:
    sys.exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
corpus_state.report(model=model, recording_over=True)
