"""A program with loops, whose source the simulation reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def program(tmp_path: Path) -> Iterator[object]:
    """Return a ``LoopProgram``. Its changes to torch are undone at the end."""
    pytest.importorskip("torch")
    from loop_programs import LoopProgram

    from gpuledger.simulate.gpu.patches import Patches

    patches = Patches()
    yield LoopProgram(tmp_path, patches)
    patches.undo()
