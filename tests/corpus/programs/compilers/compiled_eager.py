# torch.compile with the eager backend, whole graphs, compiled before the window ends.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
graphs = []


def backend(graph, inputs):
    graphs.append(len(list(graph.graph.nodes)))
    return graph.forward


compiled = torch.compile(model, backend=backend, fullgraph=True)
for number in range(30):
    optimizer.zero_grad()
    compiled(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
print(graphs)
corpus_state.report(model=model, recording_over=True)
