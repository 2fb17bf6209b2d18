"""Runs a reader on damaged inputs, one after the other, and stores the result, the time and the memory of each."""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuledger.errors import EmptyRunError, GpuLedgerError

SMALL_BYTES = 1_000_000
LONGEST_S = 10.0
"""What a reader may take for a file below :data:`SMALL_BYTES`, beside its wait for a processor on a busy machine."""
HUNG_S = 60.0
"""Time by the clock after which a reader is stopped."""
LEAST_MEMORY_BYTES = 1 << 30
MEMORY_TIMES = 10
"""What a reader may take: the larger of LEAST_MEMORY_BYTES and so many times its file."""

Tree = dict[str, bytes]
"""An input: the content of each file by its path."""


@dataclass(frozen=True)
class Target:
    """One reader: good inputs, how they are damaged, and what is done with one that lies in a directory."""

    name: str
    seeds: Callable[[], list[Tree]]
    damage: Callable[[random.Random, Tree], Tree]
    read: Callable[[Path, random.Random], None]


@dataclass
class Outcome:
    """What the inputs of one target came to."""

    target: str
    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    most_memory_bytes: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return {
            "target": self.target,
            "inputs": self.inputs,
            "outcomes": dict(sorted(self.outcomes.items())),
            "slowest_s": round(self.slowest_s, 3),
            "most_memory_bytes": self.most_memory_bytes,
            "failures": self.failures,
        }


class TookTooLongError(BaseException):
    """The time of one input is over; no reader's ``except Exception`` takes it."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(_number: int, _frame: Any) -> None:
        raise TookTooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def memory_bytes(peak: bool) -> int:
    """Return what this process has in memory, now or at most since :func:`reset_peak`; 0 where the system hides it."""
    place, name = Path("/proc/self/status"), "VmHWM:" if peak else "VmRSS:"
    lines = place.read_text().splitlines() if place.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), 0)


def reset_peak() -> None:
    """Begin the highest memory anew."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _own_time_s() -> float:
    """Return the time by a clock that stands still while this thread waits for a processor."""
    place = Path("/proc/thread-self/schedstat")
    waited_ns = int(place.read_text().split()[1]) if place.exists() else 0
    return time.perf_counter() - waited_ns / 1e9


def write_tree(tree: Tree, directory: Path) -> int:
    """Write an input's files; return the bytes of all."""
    for name, content in tree.items():
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return sum(map(len, tree.values()))


def try_one(target: Target, tree: Tree, seed: str, directory: Path, outcome: Outcome, keep: Path | None) -> None:
    """Read one input and add what it came to."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    size_bytes = write_tree(tree, directory)
    reset_peak()
    before_bytes, begun_s = memory_bytes(peak=False), _own_time_s()
    said = ""
    try:
        with _limited(HUNG_S):
            target.read(directory, random.Random(seed))
        name = "read"
    except EmptyRunError:
        name = "empty"
    except GpuLedgerError as error:
        name = f"exit {error.exit_code}"
    except OSError as error:  # a file in the way of what is written: the command line tells it in one line, with exit 1
        name, said = ("exit 1", "") if error.filename and error.strerror else ("defect OSError", traceback.format_exc())
    except TookTooLongError:
        name, said = "too long", traceback.format_exc(limit=-4)
    except Exception as error:
        name, said = f"defect {type(error).__name__}", traceback.format_exc(limit=-6)
    took_s = _own_time_s() - begun_s
    grown_bytes = max(memory_bytes(peak=True) - before_bytes, 0)
    if took_s > LONGEST_S and size_bytes < SMALL_BYTES and not said:
        name, said = "too long", f"{took_s:.1f} s"
    if grown_bytes > max(LEAST_MEMORY_BYTES, MEMORY_TIMES * size_bytes) and not said:
        name, said = "too much memory", f"{grown_bytes >> 20} MiB for {size_bytes:,} bytes"
    outcome.inputs += 1
    outcome.outcomes[name] += 1
    outcome.slowest_s = max(outcome.slowest_s, took_s)
    outcome.most_memory_bytes = max(outcome.most_memory_bytes, grown_bytes)
    if said:
        place = keep and _kept(tree, keep / target.name)
        outcome.failures.append({"seed": seed, "outcome": name, "input": str(place or ""), "said": said[-1_500:]})


def _kept(tree: Tree, folder: Path) -> Path:
    digest = hashlib.sha256(b"".join(name.encode() + content for name, content in sorted(tree.items()))).hexdigest()
    place = folder / digest[:12]
    write_tree(tree, place)
    return place


def inputs(target: Target, seed: int, first: int = 0) -> Iterator[tuple[str, Tree]]:
    """Yield inputs without end, each with the seed it is made from: the good ones first."""
    seeds = target.seeds()
    number = first
    while True:
        own_seed = f"{target.name} {seed} {number}"
        rng = random.Random(own_seed)
        yield own_seed, seeds[number] if number < len(seeds) else target.damage(rng, rng.choice(seeds))
        number += 1
