"""Time and energy of a step by source line or function, in the form of those by module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.analyze.memory.lines.source_lines import NO_LINE, line_texts, read_stacks
from gpuledger.analyze.step.energy import IDLE, EnergyAccount, Shared, share_energy, step_energy
from gpuledger.analyze.step.times import TimeAccount, sums_of
from gpuledger.analyze.step.work import read_work

if TYPE_CHECKING:
    from gpuledger.model.run import Rank


def times_by_line(rank: Rank, device_idx: int | None, word: str) -> tuple[TimeAccount, ...]:
    """Return the time of a step in ns by line and phase; empty without a timing measurement.

    Args:
        rank: One process.
        device_idx: torch's index; None selects the busiest device.
        word: ``line`` or ``function``. It stands in place of the module.
    """
    work = read_work(rank, device_idx)
    if work is None:
        return ()
    texts = line_texts(read_stacks(rank), word)
    return tuple(TimeAccount(row[0] or NO_LINE, *row[1:]) for row in sums_of(texts, work.stack_id, work))


def energies_by_line(rank: Rank, device_idx: int | None, word: str) -> tuple[EnergyAccount, ...]:
    """Return the energy of a step in J by line and phase; empty without an energy measurement.

    Args:
        rank: One process.
        device_idx: torch's index; None selects the GPU that used the most energy.
        word: ``line`` or ``function``. It stands in place of the module.
    """
    step = step_energy(rank, device_idx)
    if step is None:
        return ()
    return tuple(
        EnergyAccount(_label(one), one.key[-1], one.energy_j, one.uncertainty_j)
        for one in share_energy(rank, step, (word, "phase"))
    )


def _label(shared: Shared) -> str:
    return shared.key[0] if shared.key[-1] == IDLE else shared.key[0] or NO_LINE
