"""Half precision by autocast with a gradient scaler, whose scale halves where a gradient overflows."""

import time

import corpus_state
import torch

torch.manual_seed(33)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20, growth_interval=10)
scales = []
for step in range(200):
    batch = torch.randn(128, 256, device="cuda") * (1e4 if step % 50 == 1 else 1.0)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(batch).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    scales.append(scaler.get_scale())
    time.sleep(0.02)
print(scales[:12], scales[-1], f"{loss.item():.5f}")
corpus_state.report(model=model, scales=scales, recording_over=True)
