"""What recording itself took: bytes, time and joules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.live import to_numbers
from gpuledger.analyze.step.energy import step_energy
from gpuledger.analyze.step.steps import step_times

if TYPE_CHECKING:
    from gpuledger.model.run import Rank


@dataclass(frozen=True)
class OwnCost:
    """``recorder_bytes`` of host memory at most, time the program was kept waiting, and what steps took longer.

    ``timed_step_frac`` is a step of the time pass over a bare one. Where steps of the time pass were recorded for their
    kernels alone it is one of those, and ``named_step_frac`` the step that was recorded with its operators.
    ``energy_j`` is what the GPU used while the program waited: its base power over the pauses; None without it.
    """

    recorder_bytes: int | None
    paused_ns: int
    timed_step_frac: float | None
    named_step_frac: float | None
    energy_j: float | None


def own_cost(rank: Rank, device_idx: int | None = None) -> OwnCost:
    """Return what recording one process took.

    Source: the recorder's own count of events, the host clock, and the base power of the energy pass.
    """
    paused_ns = sum(pause.duration_ns for pause in rank.manifest.pauses)
    step, timed = step_energy(rank, device_idx), rank.manifest.time_steps or (0, -1)
    table = rank.table("steps", ("step", "recorded", "start_ns", "end_ns", "paused_ns"))
    numbers, start, end, paused = (to_numbers(table[name], 0) for name in ("step", "start_ns", "end_ns", "paused_ns"))
    own_ns = end - start - paused
    recorded = np.array(table["recorded"].to_pylist(), dtype=bool) & (numbers > 1)
    bare_ns = step_times(rank).median_ns if numbers.size and (~recorded).any() else None
    held_bytes = rank.manifest.recorder_bytes

    in_pass = (numbers >= timed[0]) & (numbers <= timed[1])
    first_alone = rank.manifest.kernels_alone.from_step if rank.manifest.kernels_alone else 0

    def against_bare(chosen: np.ndarray) -> float | None:
        return float(np.median(own_ns[chosen])) / bare_ns if bare_ns and chosen.any() else None

    return OwnCost(
        recorder_bytes=held_bytes,
        paused_ns=paused_ns,
        timed_step_frac=against_bare(in_pass & (numbers >= first_alone)),
        named_step_frac=against_bare(in_pass & (numbers < first_alone)),
        energy_j=None if step is None or step.base_w is None else step.base_w * paused_ns / 1e9,
    )
