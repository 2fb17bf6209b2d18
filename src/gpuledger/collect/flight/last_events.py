"""The allocator's history after the memory recording, for an out-of-memory error there.

It keeps the last allocations and frees (the ring), and Python stacks of some allocations. Both take time of the program
where the CPU limits its steps. A profiler's steps are slow anyway, and of kernels it measures the time on the GPU, so
the ring is on beside it, and for :data:`SETTLING_NS` after it. From then on, it is on where it takes a small share of a
step (:data:`RING_FRAC`), where memory is scarce, and in a step that begins with a larger input than the steps before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.user_history import UserHistory
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.flight.failures import Failures
from gpuledger.collect.flight.late_stacks import LateStacks, Taken
from gpuledger.collect.flight.stack_budget import SETTLING_NS
from gpuledger.collect.flight.step_counters import DeviceCounters, StepCounters, allocations_of
from gpuledger.collect.passes.outcomes import LaterMeasurement

RING_ENTRIES = 100_000
"""Number of the allocator's events that are kept, about 250 bytes of host memory each."""
EVENT_NS = 600
"""Time that the ring takes of an event, in ns. In a loop, it is 184 on an H200 (bench/time/history_parts.py); in eight
trainings, where other code uses the caches meanwhile, it was 83 to 1,396 (bench/time/flight_recorder.py)."""
RING_FRAC = {LaterMeasurement.STEPS: 0.005, LaterMeasurement.NOTHING: 0.02}
"""Share of a step that the ring may take, beside what is measured."""
STAYS_FRAC = 2.0
"""The ring stays until its share is so many times as large, so that equal steps do not switch it."""
SCARCE_FRAC = 0.5
"""Share of the memory that the process may use, above which the ring is on in any case."""
DECIDE_NS = 20_000_000
"""Shortest time between two decisions of what is kept, while no stacks are taken and little time for them is saved up.
Each takes some 40 µs of the program, whose caches have other code in the meantime."""
LIMITS_NS = 1_000_000_000
"""Time between two looks at what it may use, which the program can change."""


class LastEvents:
    """Keeps the allocator's history from the end of the memory recording on.

    Args:
        journal: Where notes are written.
        failures: Records out-of-memory errors.
        counters: Has the allocator's counters of the latest step.
        guard: Wraps callbacks from the program.
        late: Takes Python stacks; None if there shall be none.
    """

    def __init__(
        self, journal: RankJournal, failures: Failures, counters: StepCounters, guard: Guard, late: LateStacks | None
    ) -> None:
        self._journal, self._failures, self._counters, self._guard = journal, failures, counters, guard
        self._measured: LaterMeasurement | None = None
        self._user_history: UserHistory | None = None
        self._gave_way = False
        self._has_ring = False
        """Whether the ring is on, also where no stacks are taken."""
        self._late = late
        self._steps, self._next_ns = 0, 0
        """Number of steps since the last decision, and the time of the next one."""
        self._clock = _StepClock()
        self._scarce = _Scarce()

    def keep(self, measured: LaterMeasurement) -> None:
        """Keep from now on what does not change what is measured, until the program starts a history of its own."""
        if measured is self._measured or self._gave_way:
            return
        self._measured = measured
        self._steps, self._next_ns = 0, 0
        self._clock.begin()
        if not (torch_private.is_history_off() or torch_private.ring_is_on()):
            return  # somebody else's
        self._watch_for_others()
        if self._late is not None:
            self._late.pause()
        if not (self._has_ring or self._clock.has_settled):
            self._start()
        if self._late is not None and measured is not LaterMeasurement.KERNELS:
            self._begin_late(self._late)
            self._late.step_ended(self._counters.latest)

    def step_ended(self, end_ns: int) -> None:
        """Decide at the end of a step what is kept next, if it is time. The counters are those of this step."""
        self._steps += 1
        if end_ns < self._next_ns and (
            self._late is None or (self._late.taken is Taken.NEVER and not self._late.may_look())
        ):
            return
        self._next_ns = end_ns + DECIDE_NS
        steps, self._steps = self._steps, 0
        self._decide(end_ns, steps)

    def _decide(self, end_ns: int, steps: int) -> None:
        """Decide at the end of a step what is kept next. ``steps``: number of steps since the last decision."""
        measured = self._measured
        if self._gave_way or measured is None or measured is LaterMeasurement.KERNELS:
            return
        is_off = torch_private.is_history_off()
        self._has_ring &= not is_off  # a recording on demand has stopped the history
        if self._wants_ring(measured, end_ns, steps) != self._has_ring and (is_off or torch_private.ring_is_on()):
            self._watch_for_others()
            if self._late is not None:
                self._late.pause()
            (self._stop if self._has_ring else self._start)()
            if self._late is not None:
                self._begin_late(self._late)
        if self._late is not None:
            self._late.step_ended(self._counters.latest, steps)

    def take_out(self) -> None:
        """Remove everything but what the allocator keeps. Can be called more than once."""
        if self._late is not None:
            self._late.take_out()
        if self._user_history is not None:
            self._user_history.remove()
            self._user_history = None

    def _watch_for_others(self) -> None:
        """Notice when the program starts its own memory history."""
        if self._user_history is None:
            self._user_history = UserHistory(self._guard(self._give_way), self._guard.absorbs)

    def _begin_late(self, late: LateStacks) -> None:
        self._failures.has_stacks = True
        late.begin(keeps_events=self._has_ring, is_measured=self._measured is LaterMeasurement.STEPS)

    def _wants_ring(self, measured: LaterMeasurement, end_ns: int, steps: int) -> bool:
        """Return whether to keep the ring after a step."""
        had_settled = self._clock.has_settled
        self._clock.steps_ended(end_ns, allocations_of(self._counters.latest), steps)
        if not self._clock.has_settled:
            return True
        most_frac = RING_FRAC[measured] * (STAYS_FRAC if self._has_ring and had_settled else 1.0)
        return self._clock.ring_frac() <= most_frac or self._scarce.any_is(self._counters.latest, end_ns)

    def _start(self) -> None:
        torch_private.start_ring(RING_ENTRIES)
        self._has_ring = True

    def _stop(self) -> None:
        if torch_private.ring_is_on():
            torch_private.stop_ring()
        self._has_ring = False

    def _give_way(self) -> None:
        """Stop keeping events, because the program starts its own memory history."""
        self._gave_way = True
        if self._late is not None:
            self._late.take_out()
            self._late = None
        if torch_private.ring_is_on():
            self._stop()
            self._journal.note(
                "The program started its own memory history, so an out-of-memory error after that is recorded without "
                "the last allocations."
            )


class _StepClock:
    """The time of a step: the shorter of the last two times, as a pause of gpuledger can lie in one of them.

    Each is the mean of the steps between two decisions.
    """

    def __init__(self) -> None:
        self.has_settled = False
        """Whether :data:`SETTLING_NS` have passed since the first step, and there are two such times."""
        self._first_ns: int | None = None
        self._last: tuple[int, int] | None = None
        self._step_ns: list[float] = []
        self._allocations = 0.0

    def begin(self) -> None:
        """Measure the next time from the next call of :meth:`steps_ended` on."""
        self._last = None

    def steps_ended(self, end_ns: int, allocations: int, steps: int) -> None:
        """Record when the last of some steps ended, and the number of allocations until then."""
        self._first_ns = end_ns if self._first_ns is None else self._first_ns
        if self._last is not None:
            self._step_ns = [*self._step_ns[-1:], (end_ns - self._last[0]) / steps]
            self._allocations = (allocations - self._last[1]) / steps
        self._last = end_ns, allocations
        self.has_settled |= len(self._step_ns) > 1 and end_ns - self._first_ns >= SETTLING_NS

    def ring_frac(self) -> float:
        """Return the share of a step that the ring takes; infinite before the second step."""
        if len(self._step_ns) < 2:
            return float("inf")
        return 2 * self._allocations * EVENT_NS / max(min(self._step_ns), 1)


class _Scarce:
    """Compares what the process has reserved with the memory that it may use. Reads the latter once a second."""

    def __init__(self) -> None:
        self._read_ns: int | None = None
        self._from_bytes: dict[int, float] = {}

    def any_is(self, latest: Sequence[DeviceCounters], now_ns: int) -> bool:
        """Return whether the process has reserved a large share of the memory of one of these devices."""
        if self._read_ns is None or now_ns - self._read_ns >= LIMITS_NS:
            self._read_ns = now_ns
            self._from_bytes = {one.device_idx: _scarce_bytes(one.device_idx) for one in latest if one.device_idx >= 0}
        return any(one.reserved_bytes > self._from_bytes.get(one.device_idx, math.inf) for one in latest)


def _scarce_bytes(device_idx: int) -> float:
    """Return the bytes from which on the memory of a device is scarce for this process."""
    limit_frac = torch_private.memory_fraction(device_idx)
    total_bytes = torch.cuda.get_device_properties(device_idx).total_memory
    return SCARCE_FRAC * total_bytes * (1.0 if limit_frac is None else limit_frac)
