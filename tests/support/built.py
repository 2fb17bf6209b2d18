"""Small programs and libraries in C that tests build."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path


def build(source: Path, target: Path, *options: str, **texts: str) -> None:
    """Compile a file in C; each of ``texts`` is a macro for a text."""
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    assert compiler is not None, "these tests build C programs: install a C compiler (apt-get install gcc)"
    defined = [f"-D{name}={json.dumps(text)}" for name, text in texts.items()]
    subprocess.run([compiler, "-O1", "-Wall", *options, *defined, "-o", str(target), str(source)], check=True)
