"""Measure a whole model in the same way as operators, to compare it with their sum."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from gpuledger.ops.database.method import Method
from gpuledger.ops.database.statistics import Spread, summarize
from gpuledger.ops.measure.blocks import Clock, MeasuredBlock, Runner, base_power_w, energy_blocks, time_blocks
from gpuledger.ops.measure.measured_device import Device
from gpuledger.ops.measure.runners import CpuRunner, EagerRunner, RunnableCall, make_runner
from gpuledger.ops.totals.compare import Whole

STEADY_NS = 40_000_000
"""Duration of consecutive eager steps, in ns, so that the host can run ahead of the GPU or fall behind."""


class _Step:
    """A step as a call, with its own inputs. In training, it updates the weights."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step

    def __call__(self) -> object:
        return self._step()

    def restore(self) -> None:
        """Do nothing: a model's state is not restored."""


class SteadyRunner(EagerRunner):
    """Launches steps as in a loop: the measured steps start while one before them runs, not on an idle GPU.

    ``host_ns`` are the host times of the steps before, one for each block. They begin on an idle GPU, right after
    another step: the first step after a pause takes the host longer.
    """

    def __init__(self, calls: Sequence[RunnableCall]) -> None:
        super().__init__(calls)
        self.host_ns: list[float] = []

    def time_units(self, units: int) -> float:
        """Return the time of ``units`` units in ns, after one of which only the host time is measured."""
        self._launch()
        torch.cuda.synchronize()
        start_ns = time.perf_counter_ns()
        self._launch()
        self.host_ns.append(float(time.perf_counter_ns() - start_ns))
        return super().time_units(units)


def measure_whole(step: Callable[[], object], place: Device, method: Method, clock_ns: Clock = time.time_ns) -> Whole:
    """Return time and energy of one call of ``step``, eager and as a CUDA graph, and its host time.

    Host time and eager time are measured in turn, because the speed of a shared host changes from moment to moment.

    Raises:
        NoCounterError: energy was requested, and the GPU's counter does not change.
    """
    calls = [_Step(step)]
    if not place.on_card:
        measured = _measured(CpuRunner(calls), place, method, clock_ns)
        return Whole(measured.time_ns, measured.energy_j, None, measured.throttled)
    runner = SteadyRunner(calls)
    steady = replace(method, block_ns=max(method.block_ns, STEADY_NS))
    eager = _measured(runner, place, steady, clock_ns)
    base_w = base_power_w(method, place.sensors, clock_ns) if method.energy and place.sensors is not None else None
    whole = Whole(
        eager.time_ns,
        eager.energy_j,
        base_w,
        eager.throttled,
        host_ns=summarize(runner.host_ns[-eager.time_ns.count :]),
        energy_step_ns=eager.energy_step_ns,
    )
    torch.cuda.synchronize()
    replayed, why = make_runner(calls, method.block_ns, on_card=True)
    if why:
        return replace(whole, graph_why=why)
    graph = _measured(replayed, place, method, clock_ns)
    torch.cuda.synchronize()
    return replace(whole, graph_time_ns=graph.time_ns, graph_energy_j=graph.energy_j)


@dataclass(frozen=True)
class _Measured:
    """Time and energy of one call; the last is its time while the energy was measured. None without energy."""

    time_ns: Spread
    energy_j: Spread | None
    throttled: int
    energy_step_ns: float | None


def _measured(runner: Runner, place: Device, method: Method, clock_ns: Clock) -> _Measured:
    """Return time and energy of one call, and the number of throttled blocks."""
    times = time_blocks(runner, method, place.sensors, clock_ns)
    spread = summarize([block.call_ns for block in times])
    windows: list[MeasuredBlock] = []
    if method.energy and place.sensors is not None:
        windows = energy_blocks(runner, spread.median * runner.unit_calls, method, place.sensors, clock_ns)
    joules = [block.call_j for block in windows if block.call_j is not None]
    throttled = sum(block.is_throttled for block in (*times, *windows))
    if not joules:
        return _Measured(spread, None, throttled, None)
    return _Measured(spread, summarize(joules), throttled, statistics.median(block.call_ns for block in windows))
