# A backward that recurses to the limit, by a function of its own.
import corpus_state
import torch

depths = []


class Sink(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        depths.append(corpus_state.depth_reachable())
        return grad


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    optimizer.zero_grad()
    Sink.apply(model(torch.randn(8, 8))).square().mean().backward()
    optimizer.step()
corpus_state.report(model=model, recording_over=True, **{f"depth_{n}": depth for n, depth in enumerate(depths)})
