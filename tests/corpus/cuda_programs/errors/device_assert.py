"""An assertion fails on the GPU in the second step: every later call fails, the program catches it and exits."""
# status: 5

import sys

import torch

torch.manual_seed(60)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    loss = model(torch.randn(32, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        torch._assert_async(torch.zeros(1, device="cuda"))
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(step, str(error).splitlines()[0])
            break
failed = 0
for _ in range(5):
    try:
        model(torch.ones(2, 64, device="cuda")).sum().backward()
        optimizer.step()
    except RuntimeError:
        failed += 1
print(failed, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
sys.exit(5)
