"""README's figures are those of the committed results."""

from __future__ import annotations

import subprocess
import sys

from folders import ROOT


def test_the_readme_shows_the_committed_results() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "make_results_table.py"), "--check"], check=False)
    assert done.returncode == 0, "run: python tools/make_results_table.py"
