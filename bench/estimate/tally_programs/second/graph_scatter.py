"""Graph attention by scatter: batches are unions of graphs of different sizes."""

import numpy as np
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def softmax_by(scores, rows, count):
    most = torch.full((count, scores.shape[1]), float("-inf"), device=scores.device)
    most = most.scatter_reduce(0, rows.unsqueeze(1).expand_as(scores), scores.detach(), "amax")
    exponents = (scores - most[rows]).exp()
    sums = torch.zeros(count, scores.shape[1], device=scores.device).index_add_(0, rows, exponents)
    return exponents / (sums[rows] + 1e-9)


class GraphAttention(nn.Module):
    def __init__(self, inputs, width, heads):
        super().__init__()
        self.heads, self.lin = heads, nn.Linear(inputs, heads * width, bias=False)
        self.source, self.target = (
            nn.Parameter(torch.randn(heads, width) * 0.1),
            nn.Parameter(torch.randn(heads, width) * 0.1),
        )

    def forward(self, nodes, edges):
        hidden = self.lin(nodes).view(nodes.shape[0], self.heads, -1)
        source, target = edges
        scores = (hidden * self.source).sum(-1)[source] + (hidden * self.target).sum(-1)[target]
        weights = softmax_by(nn.functional.leaky_relu(scores, 0.2), target, nodes.shape[0])
        messages = hidden[source] * weights.unsqueeze(-1)
        return torch.zeros_like(hidden).index_add_(0, target, messages).flatten(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([GraphAttention(32, 32, 4), GraphAttention(128, 32, 4)])
        self.head = nn.Linear(128, 12)

    def forward(self, nodes, edges, graph):
        for layer in self.layers:
            nodes = nn.functional.elu(layer(nodes, edges))
        count = int(graph.max()) + 1
        sums = torch.zeros(count, nodes.shape[1], device=nodes.device).index_add(0, graph, nodes)
        sizes = torch.bincount(graph, minlength=count).clamp(min=1).unsqueeze(1)
        return self.head(sums / sizes)


numbers = np.random.default_rng(2)


def union(count):
    nodes, edges, graph, start = [], [], [], 0
    for index in range(count):
        size = int(numbers.integers(20, 120))
        nodes.append(numbers.standard_normal((size, 32)).astype(np.float32))
        edges.append(numbers.integers(0, size, (2, 6 * size)) + start)
        graph += [index] * size
        start += size
    return torch.from_numpy(np.concatenate(nodes)), torch.from_numpy(np.concatenate(edges, 1)), torch.tensor(graph)


torch.manual_seed(0)
model = Net().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(7):
    nodes, edges, graph = (part.to(device) for part in union(30))
    labels = torch.randint(12, (30,)).to(device)
    loss = nn.functional.cross_entropy(model(nodes, edges, graph), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
