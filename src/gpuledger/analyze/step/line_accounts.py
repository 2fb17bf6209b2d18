"""Time and energy of a step by source line or function, in the form of those by module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.analyze.memory.lines.source_lines import NO_LINE, line_texts, read_stacks
from gpuledger.analyze.step.energy import IDLE, EnergyAccount, Shared, share_energy, step_energy
from gpuledger.analyze.step.times import TimeAccount, sums_of
from gpuledger.analyze.step.work import read_work

if TYPE_CHECKING:
    from gpuledger.analyze.step.work import StepWork
    from gpuledger.model.run import Rank

LEAST_FRAC = 0.1
"""Smallest part of the profiled time with which lines are shown. Below, the step that records them ended early."""


def times_by_line(rank: Rank, device_idx: int | None, group_by: str) -> tuple[TimeAccount, ...]:
    """Return the time of a step in ns by line and phase; empty without a timing measurement, or if little has a line.

    Args:
        rank: One process.
        device_idx: torch's index; None selects the busiest device.
        group_by: ``line`` or ``function``. It stands in place of the module.
    """
    work = read_work(rank, device_idx)
    if work is None or not _has_line(work, rank):
        return ()
    texts = line_texts(read_stacks(rank), group_by)
    return tuple(TimeAccount(row[0] or NO_LINE, *row[1:]) for row in sums_of(texts, work.stack_id, work))


def energies_by_line(rank: Rank, device_idx: int | None, group_by: str) -> tuple[EnergyAccount, ...]:
    """Return the energy of a step in J by line and phase; empty without an energy measurement, or without lines.

    Args:
        rank: One process.
        device_idx: torch's index; None selects the GPU that used the most energy.
        group_by: ``line`` or ``function``. It stands in place of the module.
    """
    step = step_energy(rank, device_idx)
    if step is None or lacks_lines(rank, device_idx):
        return ()
    return tuple(
        EnergyAccount(_label(one), one.key[-1], one.energy_j, one.uncertainty_j)
        for one in share_energy(rank, step, (group_by, "phase"))
    )


def lacks_lines(rank: Rank, device_idx: int | None) -> bool:
    """Return whether the work of a step was profiled, and too little of it has a source line."""
    work = read_work(rank, device_idx)
    return work is not None and not _has_line(work, rank)


def why_no_lines(rank: Rank) -> str:
    """Return why the work of a step has no source lines, as a sentence."""
    manifest = rank.manifest
    if manifest.stacks is False:
        return "Times have no source lines: the run was recorded without Python stacks."
    if manifest.world is not None and manifest.world.size > 1:
        return "Times have no source lines: the step that records them is left out if the program has several ranks."
    if manifest.time_steps is not None and manifest.steps_seen == manifest.time_steps[1]:
        asked = () if manifest.window is None else manifest.window.asked or ()
        advice = " Use --steps 1:1 to record fewer steps before it." if asked[-1:] > (1,) else ""
        return f"Times have no source lines: the program ended before the step that records them.{advice}"
    if manifest.line_step is not None:
        return "Times have no source lines: the step that records them ended early, or has other operators."
    return "Times have no source lines: the run has no step in which they were recorded."


def _has_line(work: StepWork, rank: Rank) -> bool:
    """Return whether enough of the time has a line. Code that torch.compile has generated has none."""
    has_line = work.stack_id >= 0
    least_frac = 0.0 if rank.manifest.fusions else LEAST_FRAC
    return bool(has_line.any()) and int(work.duration_ns[has_line].sum()) >= least_frac * int(work.duration_ns.sum())


def _label(shared: Shared) -> str:
    return shared.key[0] if shared.key[-1] == IDLE else shared.key[0] or NO_LINE
