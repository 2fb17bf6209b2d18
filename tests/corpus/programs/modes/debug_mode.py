"""torch's debug mode logs every operator of some steps."""
# needs: torch.utils._debug_mode

import corpus_state
import torch
from torch.utils._debug_mode import DebugMode

torch.manual_seed(15)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    with DebugMode(record_torchfunction=step % 2 == 0) as mode:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(step, mode.debug_string())
corpus_state.report(model=model)
