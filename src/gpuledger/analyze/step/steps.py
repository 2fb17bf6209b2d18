"""Step times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.step.gpu_steps import GpuSteps, SynchronizedSteps, gpu_steps, synchronized_steps
from gpuledger.model.arrow_numbers import to_numbers
from gpuledger.units import counted

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

FEWEST_STEPS = 5
"""With fewer steps, the variation of the step time is unknown, and so is a percentile of it."""
BUSY_FRAC = 0.25
"""A host counts as busy if its slowest or its fastest steps differ from the median by more than this share."""

FAST_FRAC, WAITS_RATIO = 0.2, 1.25
"""A host waits in some steps only if the GPU's work in a step takes this many times as long as the fast steps."""
REPLAY = "replay"
"""Kind of a step that is a replay of a CUDA graph with a call of the model."""
LONG_RATIO = 2.0
"""If the mean of the steps is more than this multiple of the median, or of the GPU's work in a profiled one, some do
more than that.
"""


@dataclass(frozen=True)
class StepTimes:
    """Median, 95th and 5th percentile of the steps' own time in ns; None without steps.

    The percentiles are None for fewer than FEWEST_STEPS steps. On the GPU's clock, and if the host waits for the GPU in
    some steps only, they are None, and ``median_ns`` is a mean. ``mean_ns`` is that of unprofiled steps, ``others_ns``
    that without the longest of them, and ``fast_ns`` their quantile FAST_FRAC. ``by_host`` is whether the host's clock
    measured unprofiled steps.
    """

    count: int
    median_ns: int | None
    p95_ns: int | None
    source: str
    p5_ns: int | None = None
    mean_ns: int | None = None
    others_ns: int | None = None
    fast_ns: int | None = None
    by_host: bool = False

    @property
    def has_other_work(self) -> bool:
        """Return whether most of the time is that of unusual steps, such as those after which texts are generated.

        The longest step alone is none of them: the program can have saved a checkpoint once.
        """
        return self.median_ns is not None and (self.others_ns or 0) > LONG_RATIO * self.median_ns

    @property
    def spread_ns(self) -> int | None:
        """Return the larger distance of the two percentiles from the median; None if unknown.

        On a host that is busy all the time, most steps are slow, and the fast ones show it.
        """
        if self.median_ns is None or self.p95_ns is None:
            return None
        return max(self.p95_ns - self.median_ns, 0 if self.p5_ns is None else self.median_ns - self.p5_ns)


def step_times(rank: Rank) -> StepTimes:
    """Return the steps' end-to-end time in ns, without the recorder's pauses.

    Unprofiled steps outside the timing measurement are preferred, because nothing is installed in them: those after the
    recorded steps if there are some, because steps before them can be of another training. A program that ends before
    has recorded and profiled steps. Both are slower, so that the faster ones are closer to it. The first
    step of the program and of each training, which warms up, is left out if there are others. If the program contains
    steps of several kinds or trainings, those of the kind and training with measured times are used, and without one
    those of the last. Replays of CUDA graphs are preferred to the calls before them, which warm up and capture.

    Source: host clock. A step ends when the host returns from it, not when the GPU has finished its work. If the host
    runs ahead of the GPU by more than a step, the time is that of the GPU: between the two synchronizations of the
    energy measurement, or else of the kernels in the profiled steps. Without profiled steps, as in programs that replay
    CUDA graphs, the second synchronization shows how far it had run ahead. If it waits for the GPU in some steps only,
    such as those that print a loss, the others are too short, and the time is the mean of all.
    """
    by_host = _host_times(rank)
    if not by_host.count:
        return by_host
    on_gpu, synchronized = gpu_steps(rank), synchronized_steps(rank)
    if on_gpu is None:
        ran_ahead = synchronized is not None and synchronized.backlog_ns > synchronized.mean_ns
        return _between(synchronized) if synchronized is not None and ran_ahead else by_host
    if not on_gpu.runs_ahead:
        return _with_waits(rank, by_host, on_gpu)
    if synchronized is not None and synchronized.mean_ns >= on_gpu.busy_ns:  # else it was cut short without waiting
        return _between(synchronized)
    return _of_kernels(on_gpu)


def _between(steps: SynchronizedSteps) -> StepTimes:
    source = f"GPU, {counted(steps.count, 'step')} between two synchronizations"
    return StepTimes(steps.count, round(steps.mean_ns), None, source)


def _of_kernels(on_gpu: GpuSteps) -> StepTimes:
    count = len(on_gpu.steps)
    return StepTimes(count, round(on_gpu.mean_ns), None, f"GPU, kernels of {counted(count, 'profiled step')}")


def _with_waits(rank: Rank, by_host: StepTimes, on_gpu: GpuSteps) -> StepTimes:
    """Return the times of steps of which the host waits for the GPU in some only, or those of the host.

    The waits of few steps say little, so that the profiled steps are better. With several ranks, a collective of these
    also waits for ranks that are profiled.
    """
    median_ns, mean_ns, fast_ns, world = by_host.median_ns, by_host.mean_ns, by_host.fast_ns, rank.manifest.world
    is_alone = world is None or world.size == 1
    busy_ns = on_gpu.busy_ns if is_alone else on_gpu.compute_ns
    if median_ns is not None and mean_ns is None:  # a profiled step ends before the program waits for its work
        return _of_kernels(on_gpu) if is_alone and busy_ns > WAITS_RATIO * median_ns else by_host
    if median_ns is None or mean_ns is None or fast_ns is None or busy_ns < WAITS_RATIO * fast_ns:
        return by_host
    if by_host.count < FEWEST_STEPS:
        return _of_kernels(on_gpu) if len(on_gpu.steps) > 1 and is_alone else by_host
    if (by_host.others_ns or 0) > LONG_RATIO * busy_ns:
        return by_host
    own_ns = round(min(mean_ns, busy_ns) if is_alone else mean_ns)
    if 1 / WAITS_RATIO < own_ns / median_ns < WAITS_RATIO:
        return by_host
    if own_ns < mean_ns:
        return replace(_of_kernels(on_gpu), median_ns=own_ns)
    source = f"host clock, mean of {by_host.count} unprofiled steps"
    return StepTimes(by_host.count, own_ns, None, source, by_host=True)


def _host_times(rank: Rank) -> StepTimes:
    if not rank.manifest.recorder.has_measured_times:
        return StepTimes(0, None, None, "the GPU is simulated, so nothing ran")
    columns = ("step", "kind", "recorded", "start_ns", "end_ns", "paused_ns")
    table = rank.table("steps", columns)
    numbers, start, end, paused = (to_numbers(table[name], 0) for name in ("step", "start_ns", "end_ns", "paused_ns"))
    recorded = np.array(table["recorded"].to_pylist(), dtype=bool)
    _, once = np.unique(numbers, return_index=True)
    first, last = profiled_steps(rank)
    in_time_pass = (numbers >= first) & (numbers <= last)
    once = once[end[once] > start[once]]  # iterations of an older log have no times
    kinds = _kinds_of(rank, numbers, table["kind"].to_pylist())
    chosen = once[~recorded[once] & ~in_time_pass[once]]
    timed = once[in_time_pass[once]]
    after = chosen[numbers[chosen] > np.max(numbers[recorded | in_time_pass], initial=0)]
    chosen = after if after.size else chosen
    if chosen.size:
        if timed.size:
            chosen = chosen[kinds[chosen] == Counter(kinds[timed]).most_common(1)[0][0]]
        else:
            chosen = _of_last_kind(chosen, kinds)
    own_ns, kind = end - start - paused, "unprofiled"
    if not chosen.size:
        slower = {"recorded": once[recorded[once]], "profiled": timed}
        medians_ns = {
            name: np.median(own_ns[_warm(rank, steps, numbers)]) for name, steps in slower.items() if steps.size
        }
        kind = min(medians_ns, key=lambda name: medians_ns[name], default="recorded")
        chosen = slower[kind] if slower[kind].size else once
    chosen = _warm(rank, chosen, numbers)
    if not chosen.size:
        seen = "no step was seen" if not numbers.size else "the steps have no times"
        return StepTimes(0, None, None, seen)
    own_ns = own_ns[chosen]
    source = f"host clock, {chosen.size} {kind} step{'s' if chosen.size > 1 else ''}"
    p95_ns, p5_ns = (_quantile_ns(own_ns, share) if chosen.size >= FEWEST_STEPS else None for share in (0.95, 0.05))
    if kind != "unprofiled":
        return StepTimes(int(chosen.size), round(np.median(own_ns)), p95_ns, source, p5_ns)
    mean_ns, fast_ns = round(own_ns.mean()), _quantile_ns(own_ns, FAST_FRAC)
    others_ns = round(np.sort(own_ns)[:-1].mean()) if own_ns.size > 1 else None
    median_ns = round(np.median(own_ns))
    return StepTimes(int(chosen.size), median_ns, p95_ns, source, p5_ns, mean_ns, others_ns, fast_ns, by_host=True)


def _of_last_kind(rows: NDArray[np.int64], kinds: NDArray[np.object_]) -> NDArray[np.int64]:
    """Return the rows of the last kind; from the first replay of a CUDA graph on, those of the most frequent kind.

    Calls before the first replay have prepared the replays.
    """
    replays = np.flatnonzero(kinds[rows] == REPLAY)
    if replays.size:
        rows = rows[replays[0] :]
    last = Counter(kinds[rows]).most_common(1)[0][0] if replays.size else kinds[rows[-1]]
    return np.extract(kinds[rows] == last, rows)


def _warm(rank: Rank, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of steps without those of the first steps of a training, if there are others."""
    warm = rows[~np.isin(numbers[rows], [1, *(step for step, _ in rank.manifest.trainings)])]
    return warm if warm.size else rows


def _kinds_of(rank: Rank, numbers: NDArray[np.int64], kinds: list[str | None]) -> NDArray[np.object_]:
    """Return what distinguishes steps with different times: their kind, and the training of the optimizer."""
    if not rank.manifest.trainings:  # all steps of the optimizer are of one training
        return np.array(kinds, dtype=object)
    trainings = [rank.manifest.training_of(number) for number in numbers.tolist()]
    return np.array(
        [
            f"{kind} {number}" if kind == "optimizer" else str(kind)
            for kind, number in zip(kinds, trainings, strict=True)
        ],
        dtype=object,
    )


def _quantile_ns(times_ns: NDArray[np.int64], share: float) -> int:
    """Return a quantile as ``np.quantile`` interpolates it. That function imports ``numpy.ma``."""
    return round(np.interp(share * (times_ns.size - 1), np.arange(times_ns.size), np.sort(times_ns)))


def profiled_steps(rank: Rank) -> tuple[int, int]:
    """Return the first and the last step in which the profiler ran, including the one with source lines."""
    first, last = rank.manifest.time_steps or (0, -1)
    return first, last if rank.manifest.line_step is None else rank.manifest.line_step.step


def whole_steps(rank: Rank, device_idx: int) -> list[int]:
    """Return the recorded steps of a device with recorded start and end."""
    rows = rank.table("steps", ("step", "device_idx", "recorded", "start_index", "end_index")).to_pylist()
    return [
        row["step"]
        for row in rows
        if row["device_idx"] == device_idx and row["recorded"] and None not in (row["start_index"], row["end_index"])
    ]


def unprofiled_steps(rank: Rank, kind: str) -> dict[int, int]:
    """Return ``number -> own time in ns`` of the unprofiled steps of a kind."""
    if not rank.manifest.recorder.has_measured_times:
        return {}
    table = rank.table("steps", ("step", "kind", "recorded", "start_ns", "end_ns", "paused_ns"))
    first, last = profiled_steps(rank)
    return {
        row["step"]: row["end_ns"] - row["start_ns"] - row["paused_ns"]
        for row in table.to_pylist()
        if row["kind"] == kind and not row["recorded"] and not first <= row["step"] <= last
    }
