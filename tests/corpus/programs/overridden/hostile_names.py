"""Names that no encoding has, line breaks and very long names: of modules, classes, functions and files."""

import corpus_state
import torch

torch.manual_seed(20)
NAMES = (
    "line\nbreak",
    "nul\0",
    "\ud800 half",
    "<script>alert(1)</script>",
    "x" * 100_000,
    "'; drop table",
    "\x1b[31mred",
)
source = (
    "def forward(self, x):\n    y = x\n    for one in self.children():\n        y = one(y)\n    return torch.tanh(y)\n"
)
spaces = {"torch": torch}
exec(compile(source, "\u2028 file\n.py", "exec"), spaces)
Odd = type("Odd\u202e\n", (torch.nn.Module,), {"forward": spaces["forward"]})
model = Odd()
for number, name in enumerate(NAMES):
    model.add_module(name, torch.nn.Linear(4, 4))
model.register_parameter("p\ud803", torch.nn.Parameter(torch.ones(3)))
optimizer = type("Optim\u0000"[:5] + "\n", (torch.optim.Adam,), {})(model.parameters())
for step in range(14):
    loss = model(torch.randn(2, 4)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.6f}", len(list(model.named_modules())))
corpus_state.report(model=model)
