# The state is kept as plain numbers in JSON, and compared.
import json
from pathlib import Path

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
    if number % 6 == 2:
        state = {name: value.tolist() for name, value in model.state_dict().items()}
        Path(f"{number}.json").write_text(json.dumps(state))
corpus_state.report(model=model, recording_over=True)
