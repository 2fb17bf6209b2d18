"""Snapshots are taken without a history: they hold segments and blocks, and no event."""

import corpus_state
import torch

torch.manual_seed(19)
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (0, 1, 10):
        snapshot = torch.cuda.memory._snapshot()
        blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
        held = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        print(step, sum(map(len, snapshot["device_traces"])), len(snapshot["segments"]), len(blocks), held)
        print(
            sorted({key for block in blocks for key in block}),
            sorted({len(block.get("frames", ())) for block in blocks}),
        )
corpus_state.report(model=model)
