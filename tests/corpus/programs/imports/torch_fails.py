# torch cannot be imported: a file of that name in front of it raises.
# status: 1
from pathlib import Path

Path("torch.py").write_text("value = 1\nraise RuntimeError('this is not the torch you want')\n")
import torch
