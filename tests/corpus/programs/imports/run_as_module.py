# The program runs others by runpy, as a path and as a module.
import runpy
from pathlib import Path

import corpus_state

source = "import torch\nmodel = torch.nn.Linear(2, 2)\nmodel(torch.ones(1, 2))\nprint(__name__)\n"
Path("inner.py").write_text(source)
Path("package").mkdir()
Path("package/__init__.py").write_text("")
Path("package/__main__.py").write_text(source)
print(sorted(runpy.run_path("inner.py", run_name="__main__"))[-2:])
print(sorted(runpy.run_module("package", run_name="__main__"))[-2:])
corpus_state.report()
