# sys.monitoring, with a tool of its own and all the free numbers taken.
# needs: python3.12
import sys

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


calls = []
for number in range(6):
    print(number, sys.monitoring.get_tool(number))
    if sys.monitoring.get_tool(number) is None:
        sys.monitoring.use_tool_id(number, f"tool {number}")
sys.monitoring.register_callback(3, sys.monitoring.events.PY_START, lambda code, offset: calls.append(code.co_name))
sys.monitoring.set_local_events(3, step.__code__, sys.monitoring.events.PY_START)
for _ in range(30):
    step()
print(len(calls), set(calls))
for number in range(6):
    sys.monitoring.free_tool_id(number)
corpus_state.report(model=model, recording_over=True)
