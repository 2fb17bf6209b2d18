# Lazy modules that take their shape from the first batch.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.LazyBatchNorm1d(), torch.nn.LazyLinear(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print([type(one).__name__ for one in model])
corpus_state.report(model=model, recording_over=True)
