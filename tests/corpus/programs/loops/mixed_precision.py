# bfloat16 under autocast with a gradient scaler on the CPU, accumulation and clipping of unscaled gradients.
import corpus_state
import torch
from torch import nn

corpus_state.seed()
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
for number in range(44):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 8)).square().mean() / 2
    scaler.scale(loss).backward()
    if number % 2:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
print(scaler.get_scale(), f"{loss.item():.5f}")
corpus_state.report(model=model, recording_over=True)
