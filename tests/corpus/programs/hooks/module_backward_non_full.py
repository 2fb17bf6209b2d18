# The old kind of backward hooks.
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


seen = []
model[0].register_backward_hook(lambda m, i, o: seen.append((len(i), len(o))))
for _ in range(30):
    step()
print(len(seen), seen[0])
corpus_state.report(model=model, recording_over=True)
