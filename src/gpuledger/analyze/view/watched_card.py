"""View of a GPU that was only sampled: its memory and power over time, its figures, its energy windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.timeline import thin
from gpuledger.analyze.samples.series import PROCESS_SOURCE, SampleLine, read_lines
from gpuledger.analyze.samples.watched import Watched, watched

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

I64 = NDArray[np.int64]
POINTS = 4_000
POWER_POINTS = 2_000
INSTANTS = 200
MAX_WINDOWS = 500
PROGRAM, REST, USED = "program", "rest of the GPU", "used"


@dataclass(frozen=True)
class WatchedCard:
    """One GPU of a watched run. ``bytes`` int64[len(categories), n] sum to the GPU's used bytes at ``t_ns``."""

    rank: Rank
    line: SampleLine
    figures: Watched
    t_ns: I64
    categories: tuple[str, ...]
    bytes: I64
    power: SampleLine | None

    @property
    def origin_ns(self) -> int:
        """Return the time of the first sample in Unix ns."""
        return int(self.t_ns[0])

    @cached_property
    def used_bytes(self) -> I64:
        """Return the GPU's used bytes at ``t_ns``."""
        total: I64 = self.bytes.sum(axis=0)
        return total

    @cached_property
    def peak_at(self) -> int:
        """Return the index of the highest sample; of several, the first."""
        return int(np.argmax(self.used_bytes))

    @cached_property
    def moments(self) -> I64:
        """Return the indices of selected samples, including the peak and the last one."""
        kept = thin(self.used_bytes, self.t_ns, INSTANTS)
        return np.unique(np.concatenate((kept, [self.peak_at, self.used_bytes.size - 1])))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes of the recording and of the figures."""
        return (*self.rank.manifest.notes, *self.figures.notes)

    @cached_property
    def windows(self) -> tuple[dict[str, Any], ...]:
        """Return the energy windows of the GPU, ordered by time."""
        return read_windows(self.rank, self.line.device_idx)


def card_figures(run: Run) -> tuple[Watched, ...]:
    """Return the figures of the GPUs of a run that contains only GPU samples; empty for any other run."""
    return watched(run) if run.has_only_card_readings else ()


def read_cards(run: Run, ranks: tuple[Rank, ...]) -> tuple[WatchedCard, ...]:
    """Return the GPUs with sampled memory, by rank and device; empty if there are no samples.

    Source: the tables ``samples``, ``process_samples`` and ``windows``.
    """
    chosen = {rank.number: rank for rank in ranks if rank.table("samples").num_rows}
    lines = [line for line in read_lines([run])[0] if line.rank in chosen]
    figures = {(one.name, one.device_idx): one for one in watched(run)} if lines else {}
    own = [one for one in read_lines([run], per="process")[0] if one.source == PROCESS_SOURCE]
    programs = {(one.rank, one.device_idx): one for one in own}
    power = read_power(run)
    return tuple(
        _card(
            chosen[line.rank],
            line,
            figures[line.name, line.device_idx],
            programs.get((line.rank, line.device_idx)),
            power.get((line.rank, line.device_idx)),
        )
        for line in lines
    )


def read_power(run: Run) -> dict[tuple[int, int], SampleLine]:
    """Return the samples of power in W, thinned to :data:`POWER_POINTS`, by rank and device."""
    found = {}
    for line in read_lines([run], "power")[0]:
        kept = thin(line.values, line.t_ns, POWER_POINTS)
        found[line.rank, line.device_idx] = replace(line, t_ns=line.t_ns[kept], values=line.values[kept])
    return found


def read_windows(rank: Rank, device_idx: int) -> tuple[dict[str, Any], ...]:
    """Return the first :data:`MAX_WINDOWS` energy windows of one GPU, ordered by time, as rows of the table."""
    rows = [row for row in rank.table("windows").to_pylist() if row["device_idx"] == device_idx]
    return tuple(sorted(rows, key=lambda row: (row["start_ns"], -row["end_ns"]))[:MAX_WINDOWS])


def _card(
    rank: Rank, line: SampleLine, figures: Watched, program: SampleLine | None, power: SampleLine | None
) -> WatchedCard:
    kept = thin(line.values, line.t_ns, POINTS)
    times, used = line.t_ns[kept], np.rint(line.values[kept]).astype(np.int64)
    if program is None:
        return WatchedCard(rank, line, figures, times, (USED,), used[None, :], power)
    mine = np.minimum(_held(program, times), used)
    return WatchedCard(rank, line, figures, times, (PROGRAM, REST), np.stack([mine, used - mine]), power)


def _held(program: SampleLine, times: I64) -> I64:
    """Return the program's bytes at each time: the last sample before it, since they are sampled less often.

    If that sample is older than two sampling intervals, the program's bytes are 0.
    """
    longest_ns = 2 * int(np.median(np.diff(program.t_ns))) if program.t_ns.size > 1 else 0
    place = np.searchsorted(program.t_ns, times, side="right") - 1
    is_fresh = (place >= 0) & (times - program.t_ns[place] <= longest_ns)
    return np.where(is_fresh, np.rint(program.values[place]), 0).astype(np.int64)
