"""Two models train side by side, one on a stream of its own; the batch is made on one stream and used on both."""

import time

import corpus_state
import torch

torch.manual_seed(1)
here, there = (torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)) for _ in "ab")
here.cuda()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    there.cuda()
optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (here, there)]
for _ in range(200):
    batch = torch.randn(512, 256, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        there(batch).square().mean().backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
    batch.record_stream(side)
    here(batch).square().mean().backward()
    optimizers[0].step()
    optimizers[0].zero_grad()
    torch.cuda.current_stream().wait_stream(side)
    del batch
    torch.cuda.synchronize()  # what record_stream holds back is free again: the peak does not depend on timing
    time.sleep(0.02)
print("on the default stream:", torch.cuda.current_stream() == torch.cuda.default_stream())
corpus_state.report(model=torch.nn.ModuleList([here, there]))
