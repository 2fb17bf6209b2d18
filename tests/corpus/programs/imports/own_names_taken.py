# Files beside the program are called like modules of profilers.
from pathlib import Path

for name in ("gpuledger", "modules", "steps", "guard", "session", "calls", "units", "errors", "sitecustomize"):
    Path(f"{name}.py").write_text(f"print('the file {name}.py was imported')\n")
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


for _ in range(30):
    step()
corpus_state.report(model=model, recording_over=True)
