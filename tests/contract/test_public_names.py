"""What other people's code may rely on."""

from __future__ import annotations

import re

import pytest

import gpuledger

PUBLIC = {
    "MemoryProfiler",
    "__version__",
    "diff",
    "estimate",
    "fake_output",
    "find_batch",
    "load",
    "memory_profiler",
    "record",
    "scope",
    "watch",
}


def test_public_names_are_these() -> None:
    assert set(gpuledger.__all__) == PUBLIC
    assert set(dir(gpuledger)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_public_names_are_documented_callables(name: str) -> None:
    found = getattr(gpuledger, name)
    assert callable(found)
    assert found.__doc__
    assert found.__doc__.startswith("Return ")


def test_the_version_is_one() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+([a-z.]+\d+)?", gpuledger.__version__)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'profile'"):
        _ = gpuledger.profile
