"""The profiled work of one device: the rows from which times and energies are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.lifetimes import distinct_numbers
from gpuledger.model.arrow_numbers import to_floats, to_numbers
from gpuledger.units import format_ns

if TYPE_CHECKING:
    import pyarrow as pa

    from gpuledger.model.run import Rank

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Words = NDArray[np.object_]

COLUMNS = (
    "device_idx",
    "kind",
    "name_id",
    "start_ns",
    "end_ns",
    "module_id",
    "phase",
    "step",
    "stream",
    "operator_id",
    "scope_id",
    "stack_id",
    "flops",
    "moved_bytes",
    "numbers",
)

COLLECTIVE, EVALUATION = "collective", "evaluation"
UNUSUAL, FEWEST_STEPS = 3, 3
"""A step is left out that has more than this many times the operators and the time of the others, if there are some."""
EVALUATION_FRAC = 0.1
"""So is a step with an evaluation that takes more than this share of a usual step's work, if most have none."""
OVERLAP = 1.05
"""The ratio of the sum of operators' times to the time in which one ran, above which a note says that threads overlap.
"""
OF_ALL_THREADS = "Times by module are sums over all threads of the program, which compute at the same time."
_IDS = ("module_id", "name_id", "operator_id", "scope_id", "stack_id")


@dataclass(frozen=True)
class StepWork:
    """One entry per kernel, copy, collective or host operator, from ``steps`` profiled steps.

    A timed program without steps counts as one step. A step with a lot of other work, such as another part of the
    program between two trainings or an evaluation after some steps, is left out: times are those of a usual step, as
    the step time is. None is if they have the work of all threads, which others than the thread of the steps do at any
    time.

    ``name_id``, ``operator_id`` and ``scope_id`` are ids in the table ``names``, ``stack_id`` in ``stacks``; -1 for
    none. ``flops`` and ``moved_bytes`` are NaN if unknown, and ``numbers`` None.
    """

    device_idx: int
    steps: int
    on_host: bool
    kind: Words
    phase: Words
    module_id: I64
    name_id: I64
    operator_id: I64
    scope_id: I64
    stack_id: I64
    step: I64
    start_ns: I64
    end_ns: I64
    flops: F64
    moved_bytes: F64
    numbers: Words

    @property
    def duration_ns(self) -> I64:
        """Return the duration of each, in ns."""
        return self.end_ns - self.start_ns

    @property
    def busy_ns(self) -> float:
        """Return the time in which at least one ran, per step, in ns."""
        return union_ns(self.start_ns, self.end_ns) / self.steps

    @property
    def compute_ns(self) -> float:
        """Return the time in which at least one that is not a collective ran, per step, in ns."""
        own = self.kind != COLLECTIVE
        return union_ns(self.start_ns[own], self.end_ns[own]) / self.steps if own.any() else 0.0


def read_work(rank: Rank, device_idx: int | None = None) -> StepWork | None:
    """Return the profiled work on one device; None without a timing measurement.

    Args:
        rank: One process.
        device_idx: torch's index; None selects the busiest device.

    Source: Kineto (CUPTI on a GPU).
    """
    table = rank.table("spans", COLUMNS)
    kind, phase = (_words(table, name) for name in ("kind", "phase"))
    device, start, end, step = (to_numbers(table[name]) for name in ("device_idx", "start_ns", "end_ns", "step"))
    manifest = rank.manifest
    timed = manifest.time_steps or manifest.recorded_time_steps
    timed = timed or ((0, -1) if manifest.timed_program is None else (0, 0))
    mine = (kind != "phase") & (step >= timed[0]) & (step <= timed[1])
    if not mine.any():
        return None
    chosen = _busiest(device[mine], (end - start)[mine]) if device_idx is None else device_idx
    mine &= device == chosen
    if not mine.any():
        return None
    unusual = [] if rank.manifest.times_of_all_threads else _unusual_steps(step[mine], (end - start)[mine], phase[mine])
    mine &= ~np.isin(step, [number for number, *_ in unusual])
    ids = {column: to_numbers(table[column])[mine] for column in _IDS}
    return StepWork(
        device_idx=chosen,
        steps=len(distinct_numbers(step[mine])),
        on_host=bool((kind[mine] == "host").all()),
        kind=kind[mine],
        phase=phase[mine],
        **ids,
        step=step[mine],
        start_ns=start[mine],
        end_ns=end[mine],
        flops=to_floats(table["flops"])[mine],
        moved_bytes=to_floats(table["moved_bytes"])[mine],
        numbers=_words(table, "numbers")[mine],
    )


def work_note(rank: Rank, device_idx: int) -> str | None:
    """Return a note on steps that were not profiled or are left out, or on threads; None without any of these."""
    if rank.manifest.recorded_time_steps is not None:
        first, last = rank.manifest.recorded_time_steps
        steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        return f"Times by module are those of the operators in {steps}, while memory was recorded."
    if rank.manifest.times_of_all_threads:
        work = read_work(rank, device_idx)
        overlap = work is not None and work.on_host and work.duration_ns.sum() > OVERLAP * work.busy_ns * work.steps
        return OF_ALL_THREADS if overlap else None
    table = rank.table("spans", ("device_idx", "kind", "start_ns", "end_ns", "step", "phase"))
    device, start, end, step = (to_numbers(table[name]) for name in ("device_idx", "start_ns", "end_ns", "step"))
    first, last = rank.manifest.time_steps or (0, -1)
    mine = (_words(table, "kind") != "phase") & (step >= first) & (step <= last) & (device == device_idx)
    phase = _words(table, "phase")[mine]
    for number, time_ns, usual_ns in _unusual_steps(step[mine], (end - start)[mine], phase):
        evaluates = " with an evaluation" if (phase[step[mine] == number] == EVALUATION).any() else ""
        return (
            f"Times by module leave step {number:,} out: its work{evaluates} took {format_ns(time_ns)}, that of "
            f"another profiled step {format_ns(usual_ns)}."
        )
    return None


def _unusual_steps(step: I64, duration: I64, phase: Words) -> list[tuple[int, int, int]]:
    """Return the steps with far more work than the others: number, its work in ns, and that of a usual step."""
    numbers = distinct_numbers(step)
    if len(numbers) < FEWEST_STEPS:
        return []
    counts = np.array([np.count_nonzero(step == one) for one in numbers])
    times = np.array([int(duration[step == one].sum()) for one in numbers])
    usual_count, usual_ns = (int(np.sort(one)[one.size // 2]) for one in (counts, times))
    unusual = (counts > UNUSUAL * usual_count) & (times > UNUSUAL * usual_ns)
    in_evaluation = phase == EVALUATION
    evaluation = np.array([int(duration[in_evaluation & (step == one)].sum()) for one in numbers])
    evaluates = evaluation > EVALUATION_FRAC * usual_ns
    if 2 * np.count_nonzero(evaluates) < len(numbers):
        unusual |= evaluates
    return [(int(numbers[place]), int(times[place]), usual_ns) for place in np.flatnonzero(unusual).tolist()]


def _words(table: pa.Table, name: str) -> Words:
    import pyarrow as pa

    column = table[name]
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    coded = column.unify_dictionaries().combine_chunks()
    labels = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
    found: Words = labels[to_numbers(coded.indices, labels.size - 1)]
    return found


def _busiest(device: I64, duration: I64) -> int:
    return int(max(distinct_numbers(device), key=lambda one: int(duration[device == one].sum())))


def union_ns(start: I64, end: I64) -> int:
    """Return the time in which at least one of the intervals ran, in ns."""
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order])
    before = np.concatenate(([start[0]], latest[:-1]))
    return int(np.maximum(latest - np.maximum(start, before), 0).sum())


def names_of(rank: Rank) -> dict[int, str]:
    """Return id -> name of a rank."""
    table = rank.table("names", ("name_id", "name"))
    return dict(zip(table["name_id"].to_pylist(), table["name"].to_pylist(), strict=True))
