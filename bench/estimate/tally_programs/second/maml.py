"""Model-agnostic meta-learning: the outer gradient goes through the inner steps."""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class FewShot(nn.Module):
    def __init__(self, ways=5, width=40):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(i, width, 3, padding=1) for i in (1, width, width)])
        self.norms = nn.ModuleList([nn.GroupNorm(4, width) for _ in range(3)])
        self.head = nn.Linear(width * 9, ways)

    def forward(self, data):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            data = F.max_pool2d(F.relu(norm(conv(data))), 2)
        return self.head(data.flatten(1))


torch.manual_seed(0)
model = FewShot().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(4):
    optimizer.zero_grad()
    for _ in range(3):
        support, query = torch.rand(25, 1, 28, 28).to(device), torch.rand(75, 1, 28, 28).to(device)
        labels, wanted = torch.arange(25).to(device) % 5, torch.arange(75).to(device) % 5
        fast = dict(model.named_parameters())
        for _ in range(4):
            loss = F.cross_entropy(functional_call(model, fast, (support,)), labels)
            slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {name: value - 0.1 * slope for (name, value), slope in zip(fast.items(), slopes, strict=True)}
        outer = F.cross_entropy(functional_call(model, fast, (query,)), wanted) / 3
        outer.backward()
    optimizer.step()
