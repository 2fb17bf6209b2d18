"""Parameters, modules and optimizers are made anew in every step, and groups are emptied."""

import corpus_state
import torch

torch.manual_seed(22)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
model[1].weight = model[0].weight
kept = torch.optim.Adam(model.parameters())
for step in range(16):
    model[0].bias = torch.nn.Parameter(torch.randn(4))
    if step % 3 == 0:
        model[1] = torch.nn.Linear(4, 4)
    if step == 5:
        kept.param_groups.clear()
    if step == 8:
        kept.add_param_group({"params": list(model.parameters())})
        kept.state.clear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.randn(3, 4)).square().sum()
    loss.backward()
    optimizer.step()
    kept.step()
    model.zero_grad()
    print(step, f"{loss.item():.5f}", len(kept.state))
corpus_state.report(model=model)
