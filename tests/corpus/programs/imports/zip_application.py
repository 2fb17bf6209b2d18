# A zip application with a package of its own, relative imports and arguments, run by runpy.
import runpy
import sys
import zipapp
from pathlib import Path

import corpus_state

Path("app/inside").mkdir(parents=True)
Path("app/inside/__init__.py").write_text("from .layers import make\n")
Path("app/inside/layers.py").write_text(
    "import torch\nfrom . import sizes\n\n\ndef make():\n    return torch.nn.Linear(sizes.WIDTH, 1)\n"
)
Path("app/inside/sizes.py").write_text("WIDTH = 4\n")
Path("app/__main__.py").write_text(
    "import sys\nimport torch\nfrom inside import make\n"
    "model = make()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "for _ in range(6):\n    optimizer.zero_grad()\n"
    "    model(torch.ones(2, 4)).sum().backward()\n    optimizer.step()\n"
    "print(sys.argv[1:], __name__, __file__.rsplit('/', 2)[1:], model.__class__.__module__)\n"
)
zipapp.create_archive("app", "app.pyz")
sys.argv = ["app.pyz", "--rate", "0.5"]
runpy.run_path("app.pyz", run_name="__main__")
corpus_state.report()
