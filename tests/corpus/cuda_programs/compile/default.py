"""A compiled model trains; its graphs are compiled once."""
# needs: triton
# environment: TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 TORCHINDUCTOR_COMPILE_THREADS=1

import corpus_state
import torch
from torch._dynamo.utils import counters

torch.manual_seed(54)
model = torch.nn.Sequential(
    torch.nn.Linear(256, 512, bias=False), torch.nn.GELU(), torch.nn.Linear(512, 256, bias=False), torch.nn.Tanh()
).cuda()
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(40):
    loss = compiled(torch.randn(128, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(counters["stats"]["unique_graphs"], dict(counters["graph_break"]), f"{loss.item():.6f}")
corpus_state.report(model=model)
