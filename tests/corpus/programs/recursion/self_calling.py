# A module calls itself until Python gives up; how deep it came is told in every stage.
import corpus_state
import torch


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.depth = 0

    def forward(self, x):
        self.depth += 1
        return self(x)


corpus_state.seed()
model = Deep()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
depths = {}
for number in range(30):
    model.depth = 0
    try:
        model(torch.ones(1))
    except RecursionError:
        depths[f"depth_{number}"] = model.depth
    model.weight.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
corpus_state.report(model=model, recording_over=True, **depths)
