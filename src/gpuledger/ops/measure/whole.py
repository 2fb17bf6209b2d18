"""A whole model, measured as its operators are: what their sum has to come to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from gpuledger.ops.database.method import Method
from gpuledger.ops.database.statistics import Spread, summarize
from gpuledger.ops.measure.blocks import Block, Clock, Runner, base_power_w, energy_blocks, time_blocks
from gpuledger.ops.measure.place import Place
from gpuledger.ops.measure.runners import CpuRunner, EagerRunner, make_runner
from gpuledger.ops.totals.compare import Whole

STEADY_NS = 40_000_000
"""How long steps are timed in a row where the host launches them: it runs ahead of the GPU, or falls behind."""


class _Step:
    """A step as a call: it keeps its own inputs, and training moves its weights on."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step

    def __call__(self) -> object:
        return self._step()

    def restore(self) -> None:
        """Leave things as they are: a model is used as it comes."""


class SteadyRunner(EagerRunner):
    """Launches steps as a loop does: what is timed begins behind a step that is under way, not with an idle GPU."""

    def time_units(self, units: int) -> float:
        """Return the nanoseconds of so many units after one that is not timed."""
        self._launch()
        return super().time_units(units)


def measure_whole(step: Callable[[], object], place: Place, method: Method, clock_ns: Clock = time.time_ns) -> Whole:
    """Return the time and energy of one call of ``step``, launched as the user would: eagerly; and as a graph.

    Raises:
        NoCounterError: energy was asked for, and the GPU's counter does not move.
    """
    calls = [_Step(step)]
    runner = SteadyRunner(calls) if place.on_card else CpuRunner(calls)
    steady = replace(method, block_ns=max(method.block_ns, STEADY_NS)) if place.on_card else method
    spread, joules, throttled = _measured(runner, place, steady, clock_ns)
    base_w = base_power_w(method, place.sensors, clock_ns) if method.energy and place.sensors is not None else None
    whole = Whole(spread, joules, base_w, throttled)
    if not place.on_card:
        return whole
    torch.cuda.synchronize()
    replayed, why = make_runner(calls, method.block_ns, on_card=True, needs_host=False)
    if why:
        return replace(whole, graph_why=why)
    graph_ns, graph_j, _ = _measured(replayed, place, method, clock_ns)
    torch.cuda.synchronize()
    return replace(whole, graph_time_ns=graph_ns, graph_energy_j=graph_j)


def _measured(runner: Runner, place: Place, method: Method, clock_ns: Clock) -> tuple[Spread, Spread | None, int]:
    """Return time and energy of one call, and how many blocks the power cap held down."""
    times = time_blocks(runner, method, place.sensors, clock_ns)
    spread = summarize([block.call_ns for block in times])
    windows: list[Block] = []
    if method.energy and place.sensors is not None:
        windows = energy_blocks(runner, spread.median * runner.unit_calls, method, place.sensors, clock_ns)
    joules = [block.call_j for block in windows if block.call_j is not None]
    throttled = sum(block.is_throttled for block in (*times, *windows))
    return spread, summarize(joules) if joules else None, throttled
