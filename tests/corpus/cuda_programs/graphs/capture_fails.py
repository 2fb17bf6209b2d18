"""A capture that waits for its result fails in the second step; the program ends with a status of its own."""
# status: 4

import sys

import torch

torch.manual_seed(11)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 64, device="cuda")
for step in range(30):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved())
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                x.add(1).sum().item()
        except RuntimeError as error:
            print("failed:", type(error).__name__)
            sys.exit(4)
