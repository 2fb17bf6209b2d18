"""Overhead of the recording: memory, time and energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.step.energy import step_energy
from gpuledger.analyze.step.gpu_steps import gpu_steps, synchronized_steps
from gpuledger.analyze.step.steps import profiled_steps, step_times
from gpuledger.model.arrow_numbers import to_numbers

if TYPE_CHECKING:
    from gpuledger.model.run import Rank


UNEVEN_RATIO = 3.0
"""Smallest ratio of the second longest unprofiled step to their median with which steps are of several kinds.

An example are calls of a model of which every fourth updates the weights.
"""


@dataclass(frozen=True)
class Overhead:
    """Host memory of the recorder, pauses of the program, and how much slower profiled steps are.

    ``recorder_bytes`` is an upper bound. ``profiled_step_frac`` is the time of a profiled step divided by that of an
    unprofiled one. If the last profiled steps recorded kernels only, it is theirs, and
    ``profiled_operators_step_frac`` is that of the steps that recorded operators as well. Both are None if steps are of
    several kinds, and the profiled ones can be of the slow kind. ``energy_j`` is the GPU's base power multiplied by the
    pauses; None if the base power is not known. All are None for an imported file; only ``recorder_bytes`` is known on
    a simulated GPU.
    """

    recorder_bytes: int | None
    paused_ns: int | None
    profiled_step_frac: float | None
    profiled_operators_step_frac: float | None
    energy_j: float | None


def find_overhead(rank: Rank, device_idx: int | None = None) -> Overhead:
    """Return the overhead of recording one process.

    Source: the recorder's own count of events, the host clock, and the base power of the energy measurement. If the
    host runs ahead of the GPU, the times of steps are those of the GPU.
    """
    paused_ns = sum(pause.duration_ns for pause in rank.manifest.pauses)
    step, (first, last) = step_energy(rank, device_idx), profiled_steps(rank)
    table = rank.table("steps", ("step", "start_ns", "end_ns", "paused_ns"))
    numbers, start, end, paused = (to_numbers(table[name], 0) for name in ("step", "start_ns", "end_ns", "paused_ns"))
    own_ns = end - start - paused
    in_pass = (numbers >= first) & (numbers <= last)
    line_step = rank.manifest.line_step.step if rank.manifest.line_step else 0
    measured = in_pass & (numbers != line_step)
    times = step_times(rank)
    unprofiled_ns = times.median_ns if times.by_host else None
    slow_ns = float(sorted([0, 0, *own_ns[numbers > last].tolist()])[-2])
    held_bytes = rank.manifest.recorder_bytes

    first_alone = rank.manifest.kernels_alone.from_step if rank.manifest.kernels_alone else 0

    on_gpu, unprofiled = gpu_steps(rank, device_idx), synchronized_steps(rank)

    def over_unprofiled(chosen: np.ndarray) -> float | None:
        if on_gpu is not None and on_gpu.runs_ahead:
            times_ns = [step.time_ns for step in on_gpu.steps if step.number in numbers[chosen]]
            return float(np.median(times_ns)) / unprofiled.mean_ns if unprofiled is not None and times_ns else None
        if not unprofiled_ns or not chosen.any():
            return None
        ratio, slow_ratio = float(np.median(own_ns[chosen])) / unprofiled_ns, slow_ns / unprofiled_ns
        can_be_slow_kind = slow_ratio >= UNEVEN_RATIO and UNEVEN_RATIO <= ratio <= UNEVEN_RATIO * slow_ratio
        return None if can_be_slow_kind else ratio

    return Overhead(
        recorder_bytes=held_bytes,
        paused_ns=paused_ns if rank.manifest.recorder.has_pauses else None,
        profiled_step_frac=over_unprofiled(measured & (numbers >= first_alone)),
        profiled_operators_step_frac=over_unprofiled(measured & (numbers < first_alone)),
        energy_j=None if step is None or step.base_w is None else step.base_w * paused_ns / 1e9,
    )
