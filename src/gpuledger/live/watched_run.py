"""A run in progress: its status, its last recorded step, and the breakdown at that step's peak.

The run is not changed. Tables of the data so far are built in a temporary directory.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from gpuledger.analyze.memory.breakdown import Breakdown, break_down
from gpuledger.analyze.memory.growth import Growth, find_growth
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import device_indices, pick_device
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.analyze.step.steps import whole_steps
from gpuledger.errors import GpuLedgerError
from gpuledger.files.scratch import process_directory, remove
from gpuledger.files.writing import refuse_links, write_whole
from gpuledger.model.journal.log import journal_files
from gpuledger.model.manifest import read_rank_manifest
from gpuledger.model.run import Rank
from gpuledger.model.run_directory import ASKED, LISTENING, SUFFIX, rank_directories
from gpuledger.model.run_manifest import read_run_manifest


@dataclass(frozen=True)
class RunNow:
    """State of a run. ``breakdown`` is that of the peak of the last recorded step, once there is one.

    ``growth`` is the memory growth until the last step that is written.
    """

    name: str
    status: str
    started_ns: int
    step: int
    breakdown: Breakdown | None
    note: str = ""
    growth: tuple[Growth, ...] = ()


@dataclass(frozen=True)
class _RanksNow:
    """What one look at the tables of one or all ranks found."""

    step: int = 0
    breakdown: Breakdown | None = None
    growth: tuple[Growth, ...] = ()


class WatchedRun:
    """Looks at a run again and again; what has not changed is not read twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._scratch = process_directory("gpuledger-live-")
        self._seen: tuple[Path, int, int] | None = None
        self._last, self._missing = _RanksNow(), "nothing"

    def read(self) -> RunNow:
        """Return the run as it is now.

        Raises:
            InputError: it is not a run, or there is a link in it.
        """
        refuse_links(self._path)
        manifest = read_run_manifest(self._path)
        recorded = self._recorded()
        ranks = [directory for _, directory in rank_directories(recorded)]
        parts = [
            place
            for directory in ranks
            for place in (*journal_files(directory / "journal"), directory / "manifest.json")
        ]
        parts = [place for place in parts if place.exists()]
        seen = recorded, len(parts), sum(place.stat().st_size for place in parts)
        if seen != self._seen and parts:
            self._seen = seen
            self._last = self._read_ranks()
            self._missing = "" if self._last.breakdown is not None else "no step"
        last = self._last
        verb = "is recorded yet" if manifest.status == "running" else "was recorded"
        note = f"{self._missing} {verb}" if self._missing else ""
        name, started_ns = self._path.name.removesuffix(".ledger"), manifest.started_ns or 0
        return RunNow(name, manifest.status or "", started_ns, last.step, last.breakdown, note, last.growth)

    def ask(self) -> str:
        """Request a memory recording from the run's process now. Return a message with the outcome."""
        if read_run_manifest(self._path).status != "running":
            return "the run has ended"
        if not (self._path / LISTENING).exists():
            return "its process does not accept requests; start it with gpuledger run --live"
        try:
            write_whole(self._path / ASKED, b"")
        except OSError as error:
            return f"cannot ask: {error.strerror}"
        return "requested a memory recording; it starts with the next step"

    def _recorded(self) -> Path:
        """Return the run to show: the last requested recording, or the run itself."""
        stem = self._path.name.removesuffix(SUFFIX)
        asked = [
            place for place in self._path.parent.glob(f"{escape(stem)}-asked-*{SUFFIX}") if rank_directories(place)
        ]
        newest = max(asked, key=lambda place: place.stat().st_mtime_ns, default=self._path)
        if newest != self._path:
            refuse_links(newest)
        return newest

    def close(self) -> None:
        """Remove the directory of ours."""
        remove(self._scratch)

    def _read_ranks(self) -> _RanksNow:
        """Return step and breakdown of the rank with the highest peak, and the growth of all ranks."""
        found = [self._of_rank(number, directory) for number, directory in rank_directories(self._recorded())]
        sizes = [-1 if one.breakdown is None else one.breakdown.allocated_bytes for one in found]
        highest = found[sizes.index(max(sizes))] if found else _RanksNow()
        return _RanksNow(highest.step, highest.breakdown, tuple(growth for one in found for growth in one.growth))

    def _of_rank(self, number: int, directory: Path) -> _RanksNow:
        if not (directory / "journal").is_dir():
            return _look_at(Rank(number, directory, read_rank_manifest(directory)))
        copy = self._scratch / directory.parent.name / directory.name
        shutil.rmtree(copy, ignore_errors=True)
        try:
            shutil.copytree(directory / "journal", copy / "journal")
            rank = Rank(number, copy, post_rank(copy))
            return _look_at(rank)
        except (OSError, GpuLedgerError, ValueError):
            return _RanksNow()  # a part was being written while it was copied; the next look finds it whole


def _look_at(rank: Rank) -> _RanksNow:
    growth = find_growth(rank)
    if not device_indices(rank):
        return _RanksNow(growth=growth)
    device = pick_device(rank)
    step = max(whole_steps(rank, device), default=None)
    return _RanksNow(step or 0, break_down(rank, find_peak(rank, device, step)), growth)
