"""Writing that an exception of the program interrupts leaves no descriptor open and no row incomplete."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("torch")
from interruptions import DeadlineError, interrupted

from gpuledger.collect.flight.step_counters import DeviceCounters, StepCounters
from gpuledger.files.writing import write_whole
from gpuledger.model.journal.journal import JournalWriter, Part

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def whole_file(folder: Path) -> None:
    write_whole(folder / "run" / "rank-0" / "file", b"content", inside=folder)


def journal(folder: Path) -> None:
    writer = JournalWriter(folder / "journal")
    for _ in range(2):
        writer.append(Part(notes=["a note"]))


@pytest.mark.parametrize("write", [whole_file, journal])
def test_no_descriptor_stays_open(write: Callable[[Path], None], tmp_path: Path) -> None:
    with interrupted(-1, as_signals=True) as events:
        write(tmp_path)
        places = events()
    assert places > 20
    before = os.listdir("/proc/self/fd")
    for at in range(1, places):
        folder = tmp_path / str(at)
        folder.mkdir()
        with suppress(DeadlineError), interrupted(at, as_signals=True):
            write(folder)
        assert os.listdir("/proc/self/fd") == before, at


def test_no_row_of_counters_is_incomplete() -> None:
    devices = [DeviceCounters(device_idx, 1, 2, 3, 4, 5, 6) for device_idx in range(2)]

    def read(counters: StepCounters) -> None:
        for step in range(3):
            counters.read(step, step)

    with interrupted(-1, as_signals=True) as events:
        read(StepCounters(lambda: devices, lambda: 7))
        places = events()
    for at in range(1, places):
        counters = StepCounters(lambda: devices, lambda: 7)
        with suppress(DeadlineError), interrupted(at, as_signals=True):
            read(counters)
        part = Part()
        counters.drain(part)
        lengths = {len(column) for batch in part.rows.get("step_memory", []) for column in batch.values()}
        assert len(lengths) <= 1, at
