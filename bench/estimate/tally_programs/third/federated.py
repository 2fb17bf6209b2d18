"""Federated averaging: clients train copies of a model in turn, and the server averages their weights."""

import copy

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
server = nn.Sequential(
    nn.Conv2d(1, 24, 5),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(24, 48, 5),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(48 * 7 * 7, 700),
    nn.ReLU(),
    nn.Linear(700, 62),
).to(device)
for _ in range(2):
    states = []
    for _client in range(3):
        model = copy.deepcopy(server)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        for _ in range(2):
            frames, labels = torch.rand(60, 1, 40, 40).to(device), torch.randint(62, (60,)).to(device)
            loss = nn.functional.cross_entropy(model(frames), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        states.append({name: value.clone() for name, value in model.state_dict().items()})
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    server.load_state_dict(mean)
