# A recursive network over trees of different depth.
import corpus_state
import torch


class Tree(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.join = torch.nn.Linear(16, 8)

    def forward(self, tree):
        if isinstance(tree, torch.Tensor):
            return tree
        return torch.tanh(self.join(torch.cat([self(tree[0]), self(tree[1])])))


def grow(depth):
    return torch.randn(8) if depth == 0 else (grow(depth - 1), grow(max(0, depth - 2)))


corpus_state.seed()
model = Tree()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(30):
    optimizer.zero_grad()
    model(grow(number % 7 + 1)).sum().backward()
    optimizer.step()
corpus_state.report(model=model, recording_over=True)
