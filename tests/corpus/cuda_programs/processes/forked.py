"""A child is forked inside a step after CUDA has begun: it may not use the GPU, calls a model on the host and ends."""

import os
import sys
import warnings

import corpus_state
import torch

warnings.filterwarnings("ignore", "This process", DeprecationWarning)  # it names the process
torch.manual_seed(58)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    model(torch.randn(32, 64, device="cuda")).square().mean().backward()
    if step in (1, 13):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                torch.zeros(1, device="cuda")
            except RuntimeError as error:
                print(step, str(error).split(".")[0])
            print(torch.nn.Linear(8, 8)(torch.ones(2, 8)).shape)
            sys.stdout.flush()
            os._exit(9)
        print(step, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    optimizer.step()
    optimizer.zero_grad()
corpus_state.report(model=model)
