"""DistributedDataParallel with one rank, over NCCL."""
# environment: NCCL_SOCKET_IFNAME=lo TORCH_CPP_LOG_LEVEL=ERROR

import time

import corpus_state
import torch
import torch.distributed as dist

torch.manual_seed(34)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda:0"))
torch.cuda.set_device(0)
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).cuda()
model = torch.nn.parallel.DistributedDataParallel(net, device_ids=[0], bucket_cap_mb=1)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(160):
    if step % 4 == 3:
        with model.no_sync():
            model(torch.randn(64, 256, device="cuda")).square().mean().backward()
    loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    time.sleep(0.02)
total = torch.ones(3, device="cuda")
dist.all_reduce(total)
print(total.tolist(), f"{loss.item():.6f}")
torch.cuda.synchronize()
dist.destroy_process_group()
corpus_state.report(model=net)
