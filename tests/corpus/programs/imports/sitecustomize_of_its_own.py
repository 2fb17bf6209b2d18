# A sitecustomize of the user's environment is still loaded.
import os
import subprocess
import sys
from pathlib import Path

import corpus_state

Path("site").mkdir()
Path("site/sitecustomize.py").write_text("import builtins\nbuiltins.customized = __file__\n")
path = os.pathsep.join([str(Path("site").absolute()), os.environ.get("PYTHONPATH", "")])
command = [sys.executable, "-c", "import os, sys; print(os.path.basename(customized), 'sitecustomize' in sys.modules)"]
print(subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True))
corpus_state.report()
