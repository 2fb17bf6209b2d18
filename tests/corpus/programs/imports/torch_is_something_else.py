# A package named torch that is something else altogether.
from pathlib import Path

import corpus_state

Path("torch").mkdir()
Path("torch/__init__.py").write_text("nn = 'a lamp'\n")
import torch

print(torch.nn, torch.__name__, [Path(place).name for place in torch.__path__])
