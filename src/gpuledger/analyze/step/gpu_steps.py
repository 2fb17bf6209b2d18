"""Step times on the GPU's own clock, for programs that launch work faster than the GPU does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.lifetimes import distinct_numbers
from gpuledger.analyze.step.work import read_work
from gpuledger.model.arrow_numbers import to_numbers

if TYPE_CHECKING:
    from gpuledger.model.run import Rank


@dataclass(frozen=True)
class GpuStep:
    """One profiled step on a device, from the start of its first kernel to the end of its last one."""

    number: int
    start_ns: int
    end_ns: int

    @property
    def time_ns(self) -> int:
        """Return its duration in ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class GpuSteps:
    """The profiled steps on one device, and whether the host ran ahead of it by more than a step.

    ``busy_ns`` is the time in which at least one kernel or copy ran, per step, and ``compute_ns`` that without
    collectives, which also wait for other ranks.
    """

    steps: tuple[GpuStep, ...]
    busy_ns: float
    compute_ns: float
    runs_ahead: bool

    @property
    def mean_ns(self) -> float:
        """Return their mean duration in ns."""
        return float(np.mean([step.time_ns for step in self.steps]))


def gpu_steps(rank: Rank, device_idx: int | None = None) -> GpuSteps | None:
    """Return the profiled steps on one device; None without kernels.

    The host ran ahead if it had ended a step before the GPU had finished the previous one. It then waits for the GPU at
    no step, and its clock measures how fast it launches work, not how long the work takes.

    Args:
        rank: One process.
        device_idx: torch's index; None selects the busiest device.

    Source: Kineto (CUPTI) for the GPU, the host clock for the ends of steps.
    """
    work = read_work(rank, device_idx)
    if work is None or work.on_host:
        return None
    table = rank.table("steps", ("step", "end_ns"))
    host_ends = dict(zip(to_numbers(table["step"]).tolist(), to_numbers(table["end_ns"], 0).tolist(), strict=True))
    found = []
    for number in distinct_numbers(work.step).tolist():
        mine = work.step == number
        start_ns, end_ns = int(work.start_ns[mine].min()), int(work.end_ns[mine].max())
        found.append(GpuStep(number, start_ns, end_ns))
    ahead = any(host_ends.get(step.number + 1, step.end_ns) < step.end_ns for step in found)
    return GpuSteps(tuple(found), work.busy_ns, work.compute_ns, ahead)


@dataclass(frozen=True)
class SynchronizedSteps:
    """The steps of the energy measurement, between two synchronizations with the GPU.

    ``mean_ns`` is their mean time. ``backlog_ns`` is how long the GPU worked after the host had ended the last one.
    """

    count: int
    mean_ns: float
    backlog_ns: int


def synchronized_steps(rank: Rank) -> SynchronizedSteps | None:
    """Return the steps of the energy measurement; None without one on a GPU.

    It is also None if another training was measured than in the profiled steps, at least in part.

    Source: host clock, after waiting for the GPU before and after all of them.
    """
    found = rank.manifest.energy_pass
    if found is None or not found.cards or found.first_step is None or found.last_step is None:
        return None
    if found.start_ns is None or found.end_ns is None or found.last_step < found.first_step:
        return None
    training = rank.manifest.training_of((rank.manifest.time_steps or (found.first_step,))[0])
    if rank.manifest.leaves_training(training, found.first_step, found.last_step) is not None:
        return None
    count = found.last_step - found.first_step + 1
    table = rank.table("steps", ("step", "end_ns"))
    ends_ns = to_numbers(table["end_ns"], 0)[to_numbers(table["step"]) == found.last_step]
    backlog_ns = found.end_ns - int(ends_ns.max()) if ends_ns.size and ends_ns.max() > 0 else 0
    return SynchronizedSteps(count, (found.end_ns - found.start_ns) / count, backlog_ns)
