# A model is taken apart and put together while its hooks are in.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
seen = []
for number in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
    if number % 4 == 0:
        layer = torch.nn.Linear(16, 4)
        layer.register_forward_hook(lambda m, a, o, n=number: seen.append(n))
        model[2] = layer
        optimizer.add_param_group({"params": layer.parameters()})
print(seen, len(optimizer.param_groups))
corpus_state.report(model=model, recording_over=True)
