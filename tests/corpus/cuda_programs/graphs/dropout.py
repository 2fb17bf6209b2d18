"""Dropout inside a CUDA graph: the generator's state goes on with every replay."""
# allowed: notes
# allowed: measuring

import corpus_state
import torch

torch.manual_seed(10)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.3)).cuda()
x = torch.randn(256, 64, device="cuda")
with torch.no_grad():
    for _ in range(3):
        model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = model(x)
    zeros = []
    for _ in range(30):
        graph.replay()
        zeros.append(int((output == 0).sum()))
print(zeros, torch.cuda.initial_seed())
print(torch.rand(3, device="cuda").tolist(), torch.rand(3).tolist())
corpus_state.report(model=model)
