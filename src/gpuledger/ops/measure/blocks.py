"""Time and energy of blocks of calls. A :class:`Runner` runs them while the GPU is read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol

import numpy as np

from gpuledger.cards.card import Card, CardQuantity, SensorReading
from gpuledger.cards.energy_edges import find_edge
from gpuledger.errors import GpuLedgerError
from gpuledger.model.energy_window import Edge, WindowEnergy, measure_window
from gpuledger.ops.database.method import How, Method
from gpuledger.ops.database.statistics import is_enough

Clock = Callable[[], int]

CHUNK_NS = 5_000_000
"""Duration of the calls that are launched together under load: shorter than a tick, longer than a launch."""
WAIT_S = 0.0005
THROTTLED_FRAC = 0.01
"""Blocks in which the power limit lowered the clock for a larger share of the time are marked."""


class Runner(Protocol):
    """Runs one operator on one device. A unit is a fixed number of calls that are started together."""

    how: How
    unit_calls: int
    copies: int

    def refresh(self) -> None:
        """Restore the inputs, if calls write to them."""

    def time_units(self, units: int) -> float:
        """Return the time of ``units`` units, one after the other, in ns."""

    def submit(self, units: int) -> Callable[[], None]:
        """Start ``units`` units. Return a function that waits for their end."""


@dataclass(frozen=True)
class MeasuredBlock:
    """One block. ``call_ns`` and ``call_j`` are for one call. Values that the device does not report are None."""

    start_ns: int
    calls: int
    call_ns: float
    call_j: float | None = None
    uncertainty_j: float | None = None
    power_w: float | None = None
    ticks: int | None = None
    throttled_ns: int | None = None
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    busy_frac: float | None = None

    @property
    def is_throttled(self) -> bool:
        """Return whether the power limit lowered the clock for more than 1 % of the block."""
        return self.throttled_ns is not None and self.throttled_ns > THROTTLED_FRAC * self.call_ns * self.calls


def time_blocks(
    runner: Runner, method: Method, card: Card | None, clock_ns: Clock = time.time_ns
) -> list[MeasuredBlock]:
    """Return blocks of calls until the interval of the median time is narrow enough.

    A GPU is idle between two blocks, so that none reaches the power limit.

    Source: the device's events around graph replays, or the host's clock around calls on a CPU.
    """
    unit_ns = _warm_up(runner, method)
    units = max(1, round(method.block_ns / unit_ns))
    deadline_ns = clock_ns() + method.operator_limit_ns
    blocks: list[MeasuredBlock] = []
    throttled_ns = card.read_throttled_ns() if card else None
    while not _is_done(blocks, method) and (not blocks or clock_ns() < deadline_ns):
        runner.refresh()
        start_ns = clock_ns()
        block = MeasuredBlock(start_ns, units * runner.unit_calls, runner.time_units(units) / units / runner.unit_calls)
        if card is not None:
            block, throttled_ns = _with_state(block, card, throttled_ns)
            time.sleep(method.gap_ns / 1e9)
        blocks.append(block)
    return blocks


def _is_done(blocks: Sequence[MeasuredBlock], method: Method) -> bool:
    times = [block.call_ns for block in blocks]
    return bool(times) and is_enough(times, method.target_frac, least=method.least_blocks, most=method.most_blocks)


def _warm_up(runner: Runner, method: Method) -> float:
    """Return the time of a unit in ns, after a warm-up that loads libraries and raises clocks."""
    spent_ns, units = 0.0, 1
    while True:
        took_ns = runner.time_units(units)
        spent_ns += took_ns
        if spent_ns >= method.warm_up_ns:
            return max(took_ns / units, 1.0)
        units = min(2 * units, 1 << 16)


def _with_state(block: MeasuredBlock, card: Card, throttled_before_ns: int | None) -> tuple[MeasuredBlock, int | None]:
    """Return the block with the GPU's sensors just after it, and the throttled time so far in ns."""
    reading, throttled_ns = card.read_sensors(), card.read_throttled_ns()
    known = throttled_ns is not None and throttled_before_ns is not None
    within_ns = throttled_ns - throttled_before_ns if known else None  # type: ignore[operator]  # known says so
    return replace(_shown(block, reading), throttled_ns=within_ns), throttled_ns


def _shown(block: MeasuredBlock, reading: SensorReading) -> MeasuredBlock:
    return replace(
        block,
        sm_clock_mhz=reading.sm_clock_mhz,
        temperature_c=reading.temperature_c,
        busy_frac=reading.utilization_frac,
    )


class Load:
    """Keeps a device busy with one runner, in a thread, and records when calls finish.

    Two chunks are queued at any time, so that the device never waits.
    """

    def __init__(self, runner: Runner, unit_ns: float, clock_ns: Clock = time.time_ns) -> None:
        self._runner = runner
        self._units = max(1, round(CHUNK_NS / unit_ns))
        self._clock_ns = clock_ns
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._done: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._work, name="gpuledger-load", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if value is None and self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            calls, waiting = 0, self._runner.submit(self._units)
            self._done.append((self._clock_ns(), 0))
            while not self._stop.is_set():
                following = self._runner.submit(self._units)
                waiting()
                waiting = following
                calls += self._units * self._runner.unit_calls
                self._done.append((self._clock_ns(), calls))
            waiting()
        except BaseException as error:  # raised again by check() in the measuring thread
            self._error = error

    def check(self) -> None:
        """Raise the error that stopped the load, if any."""
        if self._error is not None:
            raise self._error

    def calls_at(self, at_ns: int) -> float:
        """Return the number of calls done at a time, interpolated between the ends of two chunks.

        Waits for the end of the chunk that runs at that time: a model's step can be as long as a window.
        """
        while self._thread.is_alive() and (not self._done or self._done[-1][0] < at_ns):
            time.sleep(WAIT_S)
        self.check()
        times, calls = zip(*list(self._done), strict=True)
        return float(np.interp(at_ns, times, calls))


class NoCounterError(GpuLedgerError):
    """The GPU's energy counter is missing or does not change."""


def energy_blocks(
    runner: Runner, unit_ns: float, method: Method, card: Card, clock_ns: Clock = time.time_ns
) -> list[MeasuredBlock]:
    """Return windows under load, from tick to tick, until the interval of the energy is narrow enough.

    Raises:
        NoCounterError: the counter does not change.

    Source: the GPU's energy counter, at a tick at both edges.
    """
    blocks: list[MeasuredBlock] = []
    runner.refresh()
    with Load(runner, unit_ns, clock_ns) as load:
        time.sleep(method.settle_s)
        start = _tick(card, clock_ns)
        while not _has_energy(blocks, method):
            time.sleep(method.window_s)
            load.check()
            end = _tick(card, clock_ns)
            reading = card.read_sensors()
            blocks.append(_shown(_energy_block(load, start, end), reading))
            start = end
    return blocks


def _has_energy(blocks: Sequence[MeasuredBlock], method: Method) -> bool:
    joules = [block.call_j for block in blocks if block.call_j is not None]
    return is_enough(joules, method.target_frac, least=method.least_windows, most=method.most_windows)


def _energy_block(load: Load, start: Edge, end: Edge) -> MeasuredBlock:
    window = between_ticks(start, end)
    calls = load.calls_at(end.tick_ns) - load.calls_at(start.tick_ns)
    span_ns = end.tick_ns - start.tick_ns
    if calls <= 0 or window.energy_j is None or window.uncertainty_j is None:
        raise NoCounterError("energy: the call is too long, none ended between two updates of the energy counter")
    return MeasuredBlock(
        start_ns=start.tick_ns,
        calls=round(calls),
        call_ns=span_ns / calls,
        call_j=window.energy_j / calls,
        uncertainty_j=window.uncertainty_j / calls,
        power_w=window.energy_j / (span_ns / 1e9),
        ticks=window.ticks,
        throttled_ns=window.throttled_ns,
    )


def between_ticks(start: Edge, end: Edge) -> WindowEnergy:
    """Return the energy between two ticks, which needs no correction for the edges."""
    return measure_window(replace(start, at_ns=start.tick_ns), replace(end, at_ns=end.tick_ns))


def base_power_w(method: Method, card: Card, clock_ns: Clock = time.time_ns) -> float | None:
    """Return the power of the GPU while it is ready and idle, in W; None without a counter."""
    try:
        start = _tick(card, clock_ns)
        time.sleep(method.base_window_s)
        window = between_ticks(start, _tick(card, clock_ns))
    except NoCounterError:
        return None
    return None if window.energy_j is None else window.energy_j / ((window.end_ns - window.start_ns) / 1e9)


def _tick(card: Card, clock_ns: Clock) -> Edge:
    edge = find_edge(clock_ns(), card, clock_ns)
    if edge is None:
        reason = card.why_missing(CardQuantity.ENERGY)
        why = f": {reason}" if reason else ""
        raise NoCounterError(
            f"energy: the GPU's energy counter is missing or does not change{why}",
            hint="Measure without energy: --time-only",
        )
    return edge
