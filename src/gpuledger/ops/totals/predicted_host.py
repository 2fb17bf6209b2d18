"""CPU time of an eager step of a model on which it was not measured, from the number of its calls. Pure.

The time of each kind of call was fitted to the measured CPU times of whole models (``tools/make_host_times.py``). It
includes the Python code around the calls, which no sum of launches has. It is that of one machine: a CPU that is twice
as fast needs half of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gpuledger.ops.database.host_overhead import AUTOGRAD_NODES, MODULE_CALLS
from gpuledger.ops.workloads.workload import Workload

PLACE = "host_times.json"
"""File of the fitted times in this package, written by ``tools/make_host_times.py``."""


LEAST_CONVOLUTIONS_FRAC = 0.1
"""Share of convolutions in the autograd nodes of a training that is like the fitted ones."""


@dataclass(frozen=True)
class StepCounts:
    """Number of calls in one step.

    Attributes:
        operators: Operators that run kernels.
        others: Views, allocations, and operators on tensors of the CPU.
        modules: Calls of modules.
        nodes: Autograd nodes that run operators.
    """

    operators: int
    others: int
    modules: int
    nodes: int

    @property
    def row(self) -> tuple[int, int, int, int]:
        """Return the counts in the order of :attr:`HostTimes.call_ns`."""
        return self.operators, self.others, self.modules, self.nodes


@dataclass(frozen=True)
class HostTimes:
    """Fitted times of calls.

    Attributes:
        machine: The machine of the measured steps, in words.
        steps: Number of measured steps.
        call_ns: Time of one call of each kind, in the order of :attr:`StepCounts.row`.
        low_frac, high_frac: Ends of the 90 % interval of a step, as shares of the predicted time.
    """

    machine: str
    steps: int
    call_ns: tuple[float, ...]
    low_frac: float
    high_frac: float


@dataclass(frozen=True)
class HostTime:
    """CPU time of one step with its 90 % interval, which is None if the time was measured."""

    time_ns: float
    low_ns: float | None
    high_ns: float | None


def counts_of(workload: Workload) -> StepCounts | None:
    """Return the numbers of calls in a step; None if the workload does not have them, such as an imported list."""
    settings = workload.settings
    modules, nodes = settings.get(MODULE_CALLS), settings.get(AUTOGRAD_NODES)
    if not isinstance(modules, int) or not isinstance(nodes, int):
        return None
    others: int = sum((settings.get("no_kernel") or {}).values()) + (settings.get("host_calls") or 0)
    return StepCounts(workload.calls, others, modules, nodes)


def predicted_host(workload: Workload) -> HostTime | None:
    """Return the predicted CPU time of an eager step in ns; None if the workload does not have the numbers of calls.

    It is also None for trainings that are not like the fitted ones, see :func:`is_like_fitted`.

    Source: fitted to whole models on one machine, see :func:`fitted_times`. Other machines differ by more than the
    interval.
    """
    counts = counts_of(workload)
    if counts is None or not is_like_fitted(workload):
        return None
    times = fitted_times()
    time_ns = time_of(counts, times.call_ns)
    return HostTime(time_ns, time_ns * times.low_frac, time_ns * times.high_frac)


def is_like_fitted(workload: Workload) -> bool:
    """Return whether the fit had such steps: inference, and training of convolutional networks without autocast.

    The nodes of other networks take less time: trainings of transformers were predicted up to 2.5 times too long.
    """
    if workload.mode == "inference":
        return True
    nodes = workload.settings.get(AUTOGRAD_NODES) or 0
    convolutions = sum(use.count for use in workload.uses if use.key.name == "convolution_backward")
    return not workload.settings.get("autocast") and convolutions >= LEAST_CONVOLUTIONS_FRAC * nodes > 0


def time_of(counts: StepCounts, call_ns: tuple[float, ...]) -> float:
    """Return the CPU time of a step in ns, from the time of one call of each kind."""
    return sum(count * one_ns for count, one_ns in zip(counts.row, call_ns, strict=True))


@cache
def fitted_times() -> HostTimes:
    """Return the times that ship with gpuledger."""
    value = json.loads(files("gpuledger.ops.totals").joinpath(PLACE).read_text(encoding="utf-8"))
    ends = value["interval_frac"]
    return HostTimes(value["machine"], value["steps"], tuple(value["call_ns"].values()), ends["low"], ends["high"])
