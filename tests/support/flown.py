"""Small CPU programs run in a forked child under the flight recorder, and the growth that is found in them."""

from __future__ import annotations

import ctypes
import os
import pickle
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pandas  # noqa: F401 # pyarrow loads it at its first array: here once instead of in each child
import torch
import torch._dynamo
from recorded import record_run

from gpuledger.analyze.memory.growth import Growth, find_growth
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.collect.flight import step_counters
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session
from gpuledger.model.run import Rank

Program = Callable[[], object]

_M_MMAP_THRESHOLD = -3
_NEW_PROCESS_BYTES = 128 << 10
"""The size from which malloc maps a block of its own. Large blocks that other tests have freed raise it, and what is
freed below it stays resident."""
_LARGEST_HOLE_BYTES = 1 << 30


@cache
def observe_once() -> None:
    """Record nothing in this process: functions of torch are compiled for observers here once, and in no child."""
    record_run(lambda _: None)


class Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and newer. The fourth figure counts blocks with a mapping of their own."""

    _fields_: ClassVar = [("figures", ctypes.c_size_t * 10)]


def use_free_memory() -> None:
    """Take all that other tests have freed, without touching it: what grows gets new pages, as in a new process.

    Memory that was free before the fork has large holes in some orders of the tests. A tensor that is joined to
    another one at each step goes in and out of them, and resident memory grows in stairs or not at all.
    """
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.mallopt(_M_MMAP_THRESHOLD, _NEW_PROCESS_BYTES)
    libc.mallinfo2.restype = Mallinfo
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    size = _LARGEST_HOLE_BYTES
    while size >= _NEW_PROCESS_BYTES:
        mappings = libc.mallinfo2().figures[3]
        block = libc.malloc(size)
        if libc.mallinfo2().figures[3] > mappings:  # no hole of this size is left
            libc.free(block)
            size //= 2


def forked(function: Callable[[], Any]) -> Any:
    """Return the result of a function that runs in a forked child; raises if it raised there."""
    observe_once()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            torch.set_num_threads(1)
            use_free_memory()
            with os.fdopen(writing, "wb") as stream:
                pickle.dump(function(), stream)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        content = stream.read()
    _, status = os.waitpid(child, 0)
    assert status == 0
    return pickle.loads(content)


def fly(program: Program, directory: Path) -> Rank:
    """Return the rank of a program that was recorded with the flight recorder in this process."""
    step_counters.HOST_EVERY_NS = 0  # steps here are shorter than the time between two reads
    settings = RecordSettings(directory, stacks=True, devices="cpu", flight_recorder=True)
    rank_directory = directory / "rank-0"
    rank_directory.mkdir(parents=True)
    session = Session(settings, rank_directory=lambda: rank_directory, from_outside=True, begins_late=False)
    session.start()
    kept = program()
    session.finish("exit")
    del kept
    return Rank(0, rank_directory, post_rank(rank_directory))


def growth_of(program: Program, directory: Path) -> tuple[Growth, ...]:
    """Return the growth found in a program, which runs in a forked child."""
    found: tuple[Growth, ...] = forked(lambda: find_growth(fly(program, directory / "flown.ledger")))
    return found


def growth_when_repeated(program: Program, directory: Path) -> tuple[Growth, ...]:
    """Return the growth found in the second of two executions in one forked child.

    The first one touches pages that this process had freed before the fork, which looks like growth of host memory.
    """

    def repeated() -> tuple[Growth, ...]:
        fly(program, directory / "first.ledger")
        return find_growth(fly(program, directory / "second.ledger"))

    found: tuple[Growth, ...] = forked(repeated)
    return found
