"""A whole training step, optimizer included, is captured after one step of warm-up, and replayed."""

import time

import corpus_state
import torch

torch.manual_seed(6)
model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
batch, target = torch.randn(64, 128, device="cuda"), torch.randn(64, 128, device="cuda")


def step() -> torch.Tensor:
    loss = torch.nn.functional.mse_loss(model(batch), target)
    loss.backward()
    optimizer.step()
    return loss


warm = torch.cuda.Stream()
warm.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(warm):
    step()
    optimizer.zero_grad(set_to_none=True)
torch.cuda.current_stream().wait_stream(warm)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
losses = []
for _ in range(150):
    batch.copy_(torch.randn(64, 128))
    graph.replay()
    losses.append(loss.item())
    time.sleep(0.02)
print(f"{losses[0]:.6f} {losses[-1]:.6f}")
corpus_state.report(model=model, losses=losses)
