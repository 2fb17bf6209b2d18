"""An assertion fails on the GPU after 25 steps, while nothing waits for it; the error is not caught."""
# also: --steps 1:100000
# status: 1

import torch

torch.manual_seed(61)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    loss = model(torch.randn(32, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 25:
        torch._assert_async(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()
