"""A model compiled with mode="reduce-overhead" trains: its graphs become CUDA graphs."""
# needs: triton
# environment: TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 TORCHINDUCTOR_COMPILE_THREADS=1

import corpus_state
import torch
from torch._dynamo.utils import counters

torch.manual_seed(55)
model = torch.nn.Sequential(
    torch.nn.Linear(128, 128, bias=False), torch.nn.GELU(), torch.nn.Linear(128, 128, bias=False)
).cuda()
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    torch.compiler.cudagraph_mark_step_begin()
    loss = compiled(torch.randn(64, 128, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(counters["stats"]["unique_graphs"], counters["inductor"]["cudagraph_skips"], f"{loss.item():.6f}")
corpus_state.report(model=model)
