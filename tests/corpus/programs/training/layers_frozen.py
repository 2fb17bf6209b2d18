# Layers are frozen and thawed, parameters replaced and groups changed while it trains.
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
    model[0].requires_grad_(number % 4 != 1)
    if number in (2, 4, 14):
        model[2].weight = torch.nn.Parameter(model[2].weight.detach() * 0.9)
        optimizer.param_groups[0]["params"] = list(model.parameters())
    if number == 8:
        optimizer = torch.optim.Adam(model.parameters())
    if any(parameter.requires_grad for parameter in model.parameters()):
        step()
corpus_state.report(model=model)
