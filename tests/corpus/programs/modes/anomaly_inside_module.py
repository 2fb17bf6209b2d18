# Anomaly mode: the NaN is made inside a module, whose stack the warning shows.
import corpus_state
import torch


class Logarithm(torch.nn.Module):
    def forward(self, x):
        return x.sqrt()


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(Logarithm()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for number in range(30):
    optimizer.zero_grad()
    try:
        with torch.autograd.detect_anomaly(check_nan=True):
            out = model(torch.zeros(2, 4))
            (out * 0).sum().backward()
        optimizer.step()
    except RuntimeError as error:
        print(number, str(error).splitlines()[0])
    optimizer.step()
corpus_state.report(model=model, recording_over=True)
