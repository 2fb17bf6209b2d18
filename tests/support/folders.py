"""Where things are in a checkout or an unpacked sdist."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
DATA = TESTS / "data"
RECORDINGS = TESTS / "recordings"
BENCH = ROOT / "bench"
EXAMPLES = ROOT / "examples"
TOOLS = ROOT / "tools"
