"""The fuzzers of ``bench/fuzz``, for tests: a few damaged inputs of one target each."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from folders import BENCH

FUZZ = BENCH / "fuzz"
SEED = 11_178
"""With this one no view draws a plot: matplotlib takes longer to load than most readers take."""


def _imported() -> ModuleType:
    sys.path.insert(0, str(FUZZ))
    try:
        return importlib.import_module("readers")
    finally:
        sys.path.remove(str(FUZZ))


readers = _imported()


def refuse_or_read(name: str, count: int) -> None:
    """Check that each of some damaged inputs of a target is read, or refused as an internal error of gpuledger."""
    outcome = readers.fuzz(readers.TARGETS[name], SEED, count=count, good=False)
    assert [one["said"] for one in outcome.failures] == []
    assert outcome.inputs == count
