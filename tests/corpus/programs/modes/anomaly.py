# Anomaly mode finds where a NaN comes from: its warning shows the stack of the forward.
import corpus_state
import torch


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float("nan")


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(30):
    optimizer.zero_grad()
    bad = number in (1, 4, 5, 9, 14, 15, 20)
    try:
        with torch.autograd.set_detect_anomaly(bad):
            hidden = model(torch.randn(8, 8))
            (Bad.apply(hidden) if bad else hidden).sum().backward()
        optimizer.step()
    except RuntimeError as error:
        print(number, str(error).splitlines()[0])
corpus_state.report(model=model, recording_over=True)
