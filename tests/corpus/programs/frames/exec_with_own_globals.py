# Steps are compiled from text and executed with globals and builtins of their own.
import builtins

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


own = {"__builtins__": {"range": range, "print": builtins.print, "__import__": __import__}, "step": step, "total": 0.0}
text = compile("for _ in range(12):\n    total += step()\nimport math\nprint(math.isfinite(total))", "<text>", "exec")
exec(text, own)
exec(text, own)
print(f"{own['total']:.5f}", sorted(name for name in own if not name.startswith("__")))
corpus_state.report(model=model, recording_over=True)
