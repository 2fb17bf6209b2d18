# Resizes, swaps and shares storages behind the tensors' back.
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
    scratch = torch.empty(4)
    scratch.untyped_storage().resize_(4096)
    scratch.resize_(1024).fill_(number)
    view = scratch[10:20]
    scratch.untyped_storage().resize_(0)
    with torch.no_grad():
        first = model[0].weight.data
        model[0].weight.data = first.clone()
        model[0].weight.set_(model[0].weight.clone())
print(view.untyped_storage().nbytes())
corpus_state.report(model=model, recording_over=True)
