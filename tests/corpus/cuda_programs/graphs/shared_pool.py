"""Two graphs of different batch sizes share one memory pool, captured inside training."""
# allowed: notes
# also: --passes memory,time

import corpus_state
import torch

torch.manual_seed(9)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
pool = torch.cuda.graph_pool_handle()
graphs = {}


def evaluate(rows: int) -> float:
    if rows not in graphs:
        graph, inputs = torch.cuda.CUDAGraph(), torch.ones(rows, 64, device="cuda")
        with torch.no_grad(), torch.cuda.graph(graph, pool=pool):
            outputs = model(inputs)
        graphs[rows] = graph, outputs
    graph, outputs = graphs[rows]
    graph.replay()
    return outputs.sum().item()


found = []
for step in range(30):
    model(torch.randn(48, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    found.append(evaluate((16, 512)[step % 2]))
print(len(graphs), f"{sum(found):.5f}")
corpus_state.report(model=model, found=found)
