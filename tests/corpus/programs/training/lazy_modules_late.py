# A lazy module's first call is in the timing pass.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    step()
    if number == 4:
        lazy = torch.nn.LazyConv1d(4, 3)
        lazy(torch.randn(2, 3, 8))
        optimizer.add_param_group({"params": lazy.parameters()})
corpus_state.report(model=[model, lazy], recording_over=True)
