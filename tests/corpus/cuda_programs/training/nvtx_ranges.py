"""NVTX ranges of the program's own around phases, and the driver's profiler switched on and off."""

import corpus_state
import torch

torch.manual_seed(46)
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
depths = []
for step in range(30):
    if step in (1, 14):
        torch.cuda.profiler.start()
    depths.append(torch.cuda.nvtx.range_push(f"step {step}"))
    with torch.cuda.nvtx.range("forward"), torch.autograd.profiler.emit_nvtx():
        loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.nvtx.mark("stepped")
    depths.append(torch.cuda.nvtx.range_pop())
    if step in (2, 16):
        torch.cuda.profiler.stop()
print(depths, f"{loss.item():.6f}")
corpus_state.report(model=model)
