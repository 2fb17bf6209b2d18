"""Graph convolutions with a normalized sparse adjacency matrix, attention over edges, and samples of neighbours."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def normalized(edges, count):
    weights = torch.ones(edges.shape[1], device=edges.device)
    matrix = torch.sparse_coo_tensor(edges, weights, (count, count)).coalesce()
    degree = torch.sparse.sum(matrix, dim=1).to_dense().clamp(min=1).rsqrt()
    rows, columns = matrix.indices()
    return torch.sparse_coo_tensor(matrix.indices(), matrix.values() * degree[rows] * degree[columns], (count, count))


class GCN(nn.Module):
    def __init__(self, inside, width, kinds):
        super().__init__()
        self.first, self.second = nn.Linear(inside, width), nn.Linear(width, kinds)

    def forward(self, x, matrix):
        x = F.relu(torch.sparse.mm(matrix, self.first(x)))
        return torch.sparse.mm(matrix, self.second(F.dropout(x, 0.5, self.training)))


class Attention(nn.Module):
    def __init__(self, inside, outside, heads=4):
        super().__init__()
        self.heads, self.project = heads, nn.Linear(inside, heads * outside, bias=False)
        self.source, self.target = (nn.Parameter(torch.randn(heads, outside) * 0.1) for _ in range(2))

    def forward(self, x, edges):
        h = self.project(x).view(len(x), self.heads, -1)
        a, b = edges
        scores = F.leaky_relu((h * self.source).sum(-1)[a] + (h * self.target).sum(-1)[b], 0.2)
        largest = torch.full((len(x), self.heads), -1e9, device=x.device)
        largest = largest.scatter_reduce(0, b.unsqueeze(1).expand_as(scores), scores, "amax")
        scores = (scores - largest[b]).exp()
        total = torch.zeros(len(x), self.heads, device=x.device).index_add(0, b, scores)
        scores = scores / total[b].clamp(min=1e-9)
        return torch.zeros_like(h).index_add(0, b, h[a] * scores.unsqueeze(-1)).flatten(1)


torch.manual_seed(0)
count, edges = 3000, torch.randint(3000, (2, 24000))
edges = torch.unique(torch.cat([edges, edges.flip(0), torch.arange(3000).repeat(2, 1)], 1), dim=1).to(device)
features, labels = torch.randn(count, 256).to(device), torch.randint(12, (count,)).to(device)
train = torch.rand(count) < 0.3
train = train.to(device)
matrix = normalized(edges, count)
plain, attentive, last = GCN(256, 128, 12).to(device), Attention(256, 32).to(device), Attention(128, 12, 1).to(device)
optimizer = torch.optim.Adam([*plain.parameters(), *attentive.parameters(), *last.parameters()], lr=0.01)
for _ in range(5):
    optimizer.zero_grad()
    F.cross_entropy(plain(features, matrix)[train], labels[train]).backward()
    found = last(F.elu(attentive(features, edges)), edges)
    F.cross_entropy(found[train], labels[train]).backward()
    optimizer.step()
    with torch.no_grad():
        right = (plain(features, matrix).argmax(1) == labels)[~train].float().mean().item()
print(right)
