"""Training goes eagerly for ten steps; then forward and backward are captured and the optimizer stays outside."""
# also: --passes memory,time

import corpus_state
import torch

torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(200, 400), torch.nn.SiLU(), torch.nn.Linear(400, 200)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
batch = torch.randn(128, 200, device="cuda")


def forward_backward() -> torch.Tensor:
    loss = model(batch).square().mean()
    loss.backward()
    return loss


for _ in range(10):
    optimizer.zero_grad(set_to_none=True)
    forward_backward()
    optimizer.step()
optimizer.zero_grad(set_to_none=True)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = forward_backward()
for _ in range(40):
    graph.replay()
    optimizer.step()
print(f"{loss.item():.6f}", torch.cuda.memory_allocated())
corpus_state.report(model=model)
