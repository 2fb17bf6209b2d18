# Federated averaging: copies of a model train in turn on data of their own, and their weights are averaged.
# devices: cpu cuda
import copy

import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
shares = [torch.randn(24, 6, device=device) + number for number in range(3)]
for _ in range(4):
    clients = [copy.deepcopy(model) for _ in shares]
    for client, share in zip(clients, shares, strict=True):
        optimizer = torch.optim.SGD(client.parameters(), lr=0.02)
        for batch in share.split(8):
            optimizer.zero_grad()
            (client(batch) - batch.mean(1, keepdim=True)).square().mean().backward()
            optimizer.step()
    states = [client.state_dict() for client in clients]
    model.load_state_dict({name: sum(state[name] for state in states) / len(states) for name in states[0]})
corpus_state.report(model=model)
