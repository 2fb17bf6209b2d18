# Message passing on a graph with index_add and scatter, and another graph in every step.
import corpus_state
import torch
from torch import nn

corpus_state.seed()


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.GRUCell(width, width)

    def forward(self, nodes, sources, targets):
        messages = self.message(torch.cat([nodes[sources], nodes[targets]], dim=1)).relu()
        return self.update(torch.zeros_like(nodes).index_add(0, targets, messages), nodes)


layers, head = nn.ModuleList(Layer(8) for _ in range(2)), nn.Linear(8, 1)
optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], lr=1e-2)
for number in range(24):
    count = 10 + number % 4
    nodes, edges = torch.randn(count, 8), torch.randint(0, count, (2, 30))
    for layer in layers:
        nodes = layer(nodes, *edges)
    loss = (head(nodes)[:, 0] - torch.bincount(edges[1], minlength=count)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
corpus_state.report(model=[layers, head], recording_over=True)
