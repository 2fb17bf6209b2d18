"""A whole model, measured as its operators are: what their sum has to come to."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from gpuledger.operators.blocks import Block, Clock, base_power_w, energy_blocks, time_blocks
from gpuledger.operators.compare import Whole
from gpuledger.operators.method import Method
from gpuledger.operators.place import Place
from gpuledger.operators.runners import CpuRunner, EagerRunner
from gpuledger.operators.statistics import summarize


class _Step:
    """A step as a call: it keeps its own inputs, and training moves its weights on."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step

    def __call__(self) -> object:
        return self._step()

    def restore(self) -> None:
        """Leave things as they are: a model is used as it comes."""


def measure_whole(step: Callable[[], object], place: Place, method: Method, clock_ns: Clock = time.time_ns) -> Whole:
    """Return the time and energy of one call of ``step``, launched as the user would: eagerly.

    Raises:
        NoCounterError: energy was asked for, and the card's counter does not move.
    """
    calls = [_Step(step)]
    runner = EagerRunner(calls) if place.on_card else CpuRunner(calls)
    times = time_blocks(runner, method, place.sensors, clock_ns)
    spread = summarize([block.call_ns for block in times])
    windows: list[Block] = []
    base_w = None
    if method.energy and place.sensors is not None:
        windows = energy_blocks(runner, spread.median, method, place.sensors, clock_ns)
        base_w = base_power_w(method, place.sensors, clock_ns)
    if place.on_card:
        torch.cuda.synchronize()
    joules = [block.call_j for block in windows if block.call_j is not None]
    return Whole(
        spread, summarize(joules) if joules else None, base_w, sum(block.is_throttled for block in (*times, *windows))
    )
