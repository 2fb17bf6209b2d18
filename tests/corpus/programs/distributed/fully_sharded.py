# fully_shard over one rank of gloo: parameters are DTensors.
# needs: gloo
import corpus_state
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
corpus_state.seed()
mesh = init_device_mesh("cpu", (1,))
model = torch.nn.Linear(8, 4)
model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Replicate()]))
model.bias = torch.nn.Parameter(distribute_tensor(model.bias.detach(), mesh, [Replicate()]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    optimizer.zero_grad()
    out = model(distribute_tensor(torch.randn(2, 8), mesh, [Replicate()]))
    out.to_local().square().mean().backward()
    optimizer.step()
print(isinstance(model.weight.grad, DTensor))
dist.destroy_process_group()
corpus_state.report(model=[model.weight.detach().to_local(), model.bias.detach().to_local()])
