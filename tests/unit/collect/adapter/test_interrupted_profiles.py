"""A profile that an exception of the program interrupts, at any place, leaves Kineto as it was."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from interruptions import DeadlineError, interrupted
from torch.autograd import profiler as autograd_profiler

from gpuledger.collect.adapter import kineto, torch_private

WARNINGS = 2
"""Kineto's level of warnings."""


def profile(*, all_threads: bool = False) -> None:
    """Profile one operator, and stop again if that was interrupted, as the timing measurement does it."""
    kineto._of_all_threads.clear()
    profiler = kineto.Profiler(all_threads=(lambda: nullcontext(True)) if all_threads else None)
    try:
        profiler.start()
        torch.ones(2).exp()
        profiler.stop(wait=False)
    except DeadlineError:
        profiler.stop(wait=False)
        raise


def variables_of_c() -> list[bytes | None]:
    """Return Kineto's environment variables as C code reads them."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    return [getenv(name.encode()) for name in (kineto.TEARDOWN, kineto.LOG_LEVEL)]


@pytest.fixture
def level() -> Iterator[Any]:
    profile()
    found = kineto._kineto_level()
    before, found.value = found.value, kineto.ERRORS
    yield found
    found.value = before


@pytest.mark.parametrize("all_threads", [False, True])
def test_a_profile_can_be_interrupted_anywhere(
    all_threads: bool, level: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with interrupted(at=-1) as events:
        profile(all_threads=all_threads)
        places = events()
    assert places > 50
    for at in range(1, places):
        with suppress(DeadlineError), interrupted(at):
            profile(all_threads=all_threads)
        assert not torch_private.is_profiling(), at
        assert level.value == kineto.ERRORS, at
        assert not autograd_profiler._is_profiler_enabled, at
        assert variables_of_c() == [None, None], at
        with torch.autograd.profiler.profile(use_kineto=True) as theirs:
            torch.ones(2).exp()
        assert "aten::exp" in {event.name for event in theirs.function_events or []}, at
    assert [line for line in capfd.readouterr().err.splitlines() if not line.startswith("USDT:")] == []


@pytest.mark.parametrize(
    ("chosen", "expected"), [(None, kineto.ERRORS), ("1", 1), (" 3x", 3), ("-1", -1), ("many", 0), ("", 0)]
)
def test_the_level_after_the_first_use_is_the_programs(
    chosen: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(kineto.LOG_LEVEL, raising=False)
    if chosen is not None:
        monkeypatch.setenv(kineto.LOG_LEVEL, chosen)
    assert kineto._level_of_program(kineto.NOT_BEGUN) == expected
    assert kineto._level_of_program(WARNINGS) == WARNINGS
