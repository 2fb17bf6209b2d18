# A training loop typed into code.InteractiveInterpreter, with an error and a traceback in it.
import code
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


shell = code.InteractiveInterpreter({"step": step, "model": model, "torch": torch})
sys.stderr = sys.stdout
for line in (
    "losses = [step() for _ in range(10)]",
    "1 / 0",
    "for _ in range(14): losses.append(step())\n",
    "len(losses)",
):
    print(shell.runsource(line, "<typed>", "single"))
sys.stderr = sys.__stderr__
corpus_state.report(model=model, recording_over=True)
