"""Variables of running functions are read, and the functions keep what ``locals()`` gave them."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from gpuledger.collect.flight.census import Census
from gpuledger.collect.flight.holders import named_objects
from gpuledger.collect.flight.time_limit import TimeLimit

pytestmark = pytest.mark.torch


def names() -> set[str]:
    """Return the names of what the program keeps, as a census reads them."""
    return {name for name, _, _ in named_objects(TimeLimit(10**10))[0]}


def variables_of_the_caller() -> dict[str, Any]:
    return sys._getframe(1).f_locals


def test_a_census_leaves_no_reference_cycle() -> None:
    """A cycle with a frame would keep the tensors of its callers until the next garbage collection."""
    names()
    gc.collect()
    gc.disable()
    try:
        left = []
        for _ in range(3):  # what other tests have left behind can become garbage meanwhile, but not each time
            Census(1).count_tensors()
            left.append(gc.collect())
        assert min(left) == 0
    finally:
        gc.enable()


def test_the_frame_of_this_thread_is_removed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cycle shows only from Python 3.12 on, where a variable of a function that has ended keeps its own frame."""
    handed_out: list[dict[int, FrameType]] = []
    read: Callable[[], dict[int, FrameType]] = sys._current_frames

    def current_frames() -> dict[int, FrameType]:
        handed_out.append(read())
        return handed_out[-1]

    monkeypatch.setattr(sys, "_current_frames", current_frames)
    names()
    assert handed_out
    assert all(threading.get_ident() not in frames for frames in handed_out)


def with_a_list() -> tuple[set[str], list[int]]:
    kept = [1, 2, 3]
    return names(), kept


def test_the_variables_of_the_calling_function_are_read() -> None:
    """In a function without ``assert``, for which pytest would write a call of ``locals()`` into it."""
    found, kept = with_a_list()
    assert "kept" in found
    assert kept == [1, 2, 3]


def with_locals() -> dict[str, Any]:
    batch_size = 8
    options = locals()
    names()
    return {**options, "same": options["batch_size"] == batch_size}


def with_another_reader() -> dict[str, Any]:
    batch_size = 8
    options = variables_of_the_caller()
    names()
    return {**options, "same": options["batch_size"] == batch_size}


def with_exec() -> dict[str, Any]:
    options: dict[str, Any] = locals()  # from Python 3.13 on, ``exec`` without a dict writes into one of its own
    exec("batch_size = 8", globals(), options)
    names()
    return {**options, "same": True}


@pytest.mark.parametrize("program", [with_locals, with_another_reader, with_exec])
def test_the_dict_of_a_functions_variables_stays(program: Callable[[], dict[str, Any]]) -> None:
    found = program()
    assert (found["batch_size"], found["same"]) == (8, True)


def test_the_variables_of_other_threads_are_read() -> None:
    waits, ends = threading.Event(), threading.Event()

    def receive() -> None:
        seen = [1, 2, 3]
        waits.set()
        ends.wait()
        seen.clear()

    thread = threading.Thread(target=receive)
    thread.start()
    try:
        assert waits.wait(60)
        assert "seen" in names()
    finally:
        ends.set()
        thread.join()
