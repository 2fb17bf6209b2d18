"""bench/estimate/conv_workspaces.py: which convolutions it draws, and how it reads the allocator's history."""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conv_example import Load, example_modules
from folders import BENCH

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    with example_modules() as load_module:
        yield load_module


def marked(bench: Any, *streams: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return the events of one case that is called twice, with forward and backward as given."""
    events = [("alloc", 1, bench.BEGIN), ("free_requested", 1, bench.BEGIN)]
    for _ in range(2):
        for begin, stream in zip((bench.FORWARD, bench.BACKWARD), streams, strict=True):
            events += [("alloc", 1, begin), ("free_requested", 1, begin), *stream, ("alloc", 1, bench.END)]
    return events


def test_a_row_is_the_arguments_it_was_made_of(load: Load) -> None:
    bench, dice = load("conv_workspaces"), random.Random(7)
    rows = [bench.canonical(row) for row in (bench.draw(dice) for _ in range(300)) if bench.is_fit(row)]
    assert len(rows) > 150
    assert {row[0] for row in rows} == {1, 2, 3}
    for row in rows:
        assert bench.canonical(row) == row


def test_sizes_are_those_of_the_tensors(load: Load) -> None:
    bench, dice = load("conv_workspaces"), random.Random(8)
    for row in (row for row in (bench.draw(dice) for _ in range(100)) if bench.is_fit(row)):
        tensors, rest = bench.arguments_of(row, "meta")
        made = torch.ops.aten.convolution(*tensors, *rest)
        assert load("conv_rows").sizes_of(row)[0] == 2 * (tensors[0].nbytes + tensors[1].nbytes + made.nbytes)


@pytest.mark.parametrize("name", ["volumes", "groups", "lines", "transposed", "images", "rare", "nets"])
def test_a_set_draws_convolutions_that_torch_takes(load: Load, name: str) -> None:
    bench = load("conv_workspaces")
    rows = [row for _, row in itertools.islice(bench.cases_of_set(name, None, 0, 1), 80)]
    assert len(set(rows)) > 75
    for row in rows:
        assert bench.canonical(row) == row
        assert bench.is_fit(row)


def test_listed_convolutions_are_measured_once_before_those_of_a_set(load: Load, tmp_path: Path) -> None:
    bench, shapes, dice = load("conv_workspaces"), load("conv_shapes"), random.Random(3)
    rows = [bench.draw(dice) for _ in range(7)]
    shapes.write(tmp_path / "listed.npz", {"held out:one": dict.fromkeys(rows)})
    walks = [bench.cases_of_set("lines", tmp_path / "listed.npz", share, 2) for share in (0, 1)]
    first = [case for walk, count in zip(walks, (4, 3), strict=True) for case in itertools.islice(walk, count)]
    assert sorted(first) == sorted(("held out:one", row) for row in rows)
    assert [next(walk)[0] for walk in walks] == ["drawn", "drawn"]


def test_a_limit_ends_workers_and_joins_what_they_wrote(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, dice = load("conv_workspaces"), random.Random(11)
    case = bench.Case("drawn", bench.draw(dice), 0, [[4, -1], [], [], []])
    bench.write(tmp_path / "out.0.npz", [case], {"card": "none"})
    start, asleep = subprocess.Popen, [sys.executable, "-c", "import time; time.sleep(600)"]
    started = [start(asleep), start(asleep)]
    waiting = iter(started)
    monkeypatch.setattr(bench.subprocess, "Popen", lambda _: next(waiting))
    names = {"share": "0/1", "workers": 2, "seconds": 60.0, "dims": 0, "pointwise": False, "set": "lines", "shapes": 0}
    limit = {"begin_s": time.monotonic(), "limit_s": bench.JOIN_S + 0.5}
    bench.run_workers(argparse.Namespace(out=tmp_path / "out.npz", **names, **limit))
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2
    assert bench.read(tmp_path / "out.npz")[0] == [case]


def test_what_is_judged_by_is_not_measured(load: Load) -> None:
    shapes = load("conv_shapes")
    import numpy as np

    with np.load(BENCH / "estimate" / "conv_shapes.npz") as listed:
        names = {name.removeprefix("model:") for name in listed["sources"].tolist() if name.startswith("model:")}
    assert len(names) > 100
    assert not [name for name in names if name.startswith(shapes.JUDGES) and name not in shapes.TIMM]


def test_blocks_are_told_from_the_history_between_the_marks(load: Load) -> None:
    bench = load("conv_workspaces")
    forward = [("segment_alloc", 0, 99), ("alloc", 60, 100), ("alloc", 61, 7), ("free_requested", 61, 7)]
    backward = [("alloc", 70, 1), ("alloc", 71, 2), ("free_requested", 70, 1), ("free_completed", 70, 1)]
    cases = [bench.Case("one", ()), bench.Case("two", ()), bench.Case("three", ())]
    refused = [("alloc", 1, bench.BEGIN), ("alloc", 1, bench.FORWARD), ("alloc", 1, bench.FAILED)]
    full = [("alloc", 1, bench.BEGIN), ("oom", None, 5), ("alloc", 1, bench.FAILED)]
    bench.read_events(cases, [*marked(bench, forward, backward), *refused, *full])
    assert cases[0].streams == [[100, 7, -2], [1, 2, -1], [100, 7, -2], [1, 2, -1]]
    assert [case.state for case in cases] == [bench.RAN, bench.REFUSED, bench.NO_MEMORY]


def test_what_is_written_is_read_again_once(load: Load, tmp_path: Path) -> None:
    bench, dice = load("conv_workspaces"), random.Random(9)
    cases = [bench.Case("drawn", bench.draw(dice), 0, [[n, -1], [n, 5], [], [7]]) for n in range(1, 30)]
    bench.write(tmp_path / "a.npz", cases, {"card": "none"})
    assert bench.read(tmp_path / "a.npz") == (cases, {"card": "none"})
    bench.join([tmp_path / "a.npz"] * 2, tmp_path / "b.npz")
    assert bench.read(tmp_path / "b.npz")[0] == cases
