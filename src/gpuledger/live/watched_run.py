"""A run in progress: its status, its last recorded step, and the breakdown at that step's peak.

The run is not changed. Tables of the data so far are built in a temporary directory.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from gpuledger.analyze.memory.breakdown import Breakdown, break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.live import device_indices, pick_device
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.analyze.step.steps import whole_steps
from gpuledger.errors import GpuLedgerError
from gpuledger.files.writing import refuse_links, write_whole
from gpuledger.model.journal.log import journal_files
from gpuledger.model.manifest import read_rank_manifest
from gpuledger.model.run import Rank
from gpuledger.model.run_directory import ASKED, LISTENING, SUFFIX, rank_directories
from gpuledger.model.run_manifest import read_run_manifest


@dataclass(frozen=True)
class RunNow:
    """State of a run. ``breakdown`` is that of the peak of the last recorded step, once there is one."""

    name: str
    status: str
    started_ns: int
    step: int
    breakdown: Breakdown | None
    note: str = ""


class WatchedRun:
    """Looks at a run again and again; what has not changed is not read twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._scratch = Path(tempfile.mkdtemp(prefix="gpuledger-live-"))
        self._seen: tuple[Path, int, int] | None = None
        self._last: tuple[int, Breakdown | None, str] = (0, None, "nothing is recorded yet")

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
            self._last = self._read_breakdown()
        step, breakdown, note = self._last
        name = self._path.name.removesuffix(".ledger")
        return RunNow(name, manifest.status or "", manifest.started_ns or 0, step, breakdown, note)

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
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _read_breakdown(self) -> tuple[int, Breakdown | None, str]:
        found = [self._of_rank(number, directory) for number, directory in rank_directories(self._recorded())]
        known = [(step, breakdown, "") for step, breakdown in found if breakdown is not None]
        return max(known, key=lambda one: one[1].allocated_bytes, default=(0, None, "no step is recorded yet"))

    def _of_rank(self, number: int, directory: Path) -> tuple[int, Breakdown | None]:
        if not (directory / "journal").is_dir():
            return _breakdown_of(Rank(number, directory, read_rank_manifest(directory)))
        copy = self._scratch / directory.parent.name / directory.name
        shutil.rmtree(copy, ignore_errors=True)
        try:
            shutil.copytree(directory / "journal", copy / "journal")
            rank = Rank(number, copy, post_rank(copy))
            return _breakdown_of(rank)
        except (OSError, GpuLedgerError, ValueError):
            return 0, None  # a part was being written while it was copied; the next look finds it whole


def _breakdown_of(rank: Rank) -> tuple[int, Breakdown | None]:
    if not device_indices(rank):
        return 0, None
    device = pick_device(rank)
    step = max(whole_steps(rank, device), default=None)
    return step or 0, break_down(rank, find_peak(rank, device, step))
