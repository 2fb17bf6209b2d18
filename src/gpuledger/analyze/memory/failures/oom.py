"""Explain a failed allocation: why it failed, what held the memory, and what would have let it pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpuledger.analyze.memory.breakdown import Breakdown, break_down
from gpuledger.analyze.memory.failures.failed_request import FailedState, read_failed_state
from gpuledger.analyze.memory.failures.last_steps import StepMemory, read_last_steps
from gpuledger.analyze.memory.failures.oom_cause import Cause, Evidence, find_cause
from gpuledger.analyze.memory.failures.oom_remedies import Remedy, find_remedies
from gpuledger.analyze.memory.growth import find_growth
from gpuledger.analyze.memory.growth_origin import module_path
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import device_indices, read_labels, read_numbers
from gpuledger.analyze.memory.lines.loop_growth import LoopGrowth, find_loop_growth
from gpuledger.analyze.memory.small_states import number_bytes
from gpuledger.model.flight_facts import ANOTHER_THREAD

if TYPE_CHECKING:
    from gpuledger.model.flight_facts import FailedAllocation
    from gpuledger.model.run import Rank

_NEVER_NS = 1 << 63
"""Later than every time."""


@dataclass(frozen=True)
class Besides:
    """What else used the GPU's memory. Values are None if they are not known.

    ``own_bytes`` are the process's, outside PyTorch's allocator: the context, NCCL and other libraries.
    ``undivided_bytes`` are all of it, if the driver does not list the processes.
    """

    other_process_bytes: int | None = None
    own_bytes: int | None = None
    undivided_bytes: int | None = None


@dataclass(frozen=True)
class Ending:
    """The request of the error that ended the program. ``line`` and ``module`` are "" if unknown."""

    tried_bytes: int | None
    step: int | None
    line: str
    module: str
    inputs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class OutOfMemory:
    """One failed allocation. Values are None if the device did not report them.

    ``holders`` are the bytes in use when it failed, by category and module, if it failed in a recorded step; None
    otherwise. ``state``, ``cause`` and ``remedies`` are from the flight recorder, None and empty without it. ``line``
    and ``module`` are where the program asked; "" if unknown. ``is_module_by_order`` is whether the module is that of
    the same request in a recorded step. ``times`` counts errors like this one, and ``last_tried_bytes`` is the request
    of the last of them. ``library`` is the one that could not allocate, such as NCCL; "" for PyTorch.
    ``inputs`` are the shapes of the outermost module's inputs then, ``thread`` is the name of the thread if it is not
    the main one, and ``is_capturing`` whether a CUDA graph was being captured. ``failure_id`` is its number in the
    tables of failures. ``is_kill`` is whether the kernel ended a process instead of refusing a request.
    """

    device_idx: int
    tried_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    largest_free_bytes: int | None
    holders: Breakdown | None
    step: int | None = None
    times: int = 1
    last_tried_bytes: int | None = None
    line: str = ""
    module: str = ""
    is_module_by_order: bool = False
    state: FailedState | None = None
    cause: Cause | None = None
    remedies: tuple[Remedy, ...] = ()
    library: str = ""
    inputs: tuple[tuple[int, ...], ...] = ()
    thread: str = ""
    in_backward: bool = False
    is_capturing: bool = False
    failure_id: int | None = None
    is_kill: bool = False
    besides: Besides = Besides()
    """What else used the GPU's memory, with the flight recorder."""
    last_steps: tuple[StepMemory, ...] = ()
    """The counters at the end of the steps before, with the flight recorder."""
    ending: Ending | None = None
    """The last of the errors like this one, if it ended the program."""


Gpus: TypeAlias = "Sequence[tuple[str, int]]"
"""Names of GPUs, and the bytes that a process can use of each."""


def explain_oom(rank: Rank, *, replays: bool = True, gpus: Gpus = ()) -> tuple[OutOfMemory, ...]:
    """Return every out-of-memory error of the recording, in order.

    Args:
        rank: The rank.
        replays: Whether the last requests are replayed with changes, which takes up to some seconds.
        gpus: Other GPUs, of which the smallest is named with which the request would have fitted.

    Source: the allocator's out-of-memory observer. The memory in use is from the allocator's history at that time, from
    its snapshot after the recorded steps, or at the peak if the time is not known.
    """
    return tuple(_explain(rank, failure, gpus, replays=replays) for failure in rank.manifest.oom)


def explain_ranks(ranks: Sequence[Rank], gpus: Gpus = ()) -> tuple[tuple[Rank, OutOfMemory], ...]:
    """Return every out-of-memory error of several ranks, with its rank. The rank that failed first comes first.

    The last requests are replayed for that rank only.
    """
    in_order = sorted(ranks, key=lambda rank: first_error_ns(rank) or _NEVER_NS)
    return tuple((rank, one) for rank in in_order for one in explain_oom(rank, replays=rank is in_order[0], gpus=gpus))


def first_error_ns(rank: Rank) -> int | None:
    """Return the Unix time in ns of a rank's first out-of-memory error; None without an error or its time.

    Source: the flight recorder, or without it the allocator's counters, which are read at an error in a recorded step.
    """
    if not rank.manifest.oom:
        return None
    known = [one.t_ns for one in rank.manifest.oom if one.t_ns is not None]
    if not known:
        table = rank.table("counters", ("t_ns", "reason"))
        rows = zip(table["t_ns"].to_pylist(), table["reason"].to_pylist(), strict=True)
        known = [int(time_ns) for time_ns, reason in rows if reason == "oom"]
    return min(known, default=None)


def _explain(rank: Rank, failure: FailedAllocation, gpus: Gpus, *, replays: bool) -> OutOfMemory:
    device = failure.device_idx or 0
    sizes = failure.tried_bytes, failure.total_bytes, failure.free_bytes, failure.largest_free_bytes
    state = read_failed_state(rank, failure)
    is_host = device < 0
    is_recorded = (
        failure.step is None or (failure.failure_id is None and not is_host) or _is_recorded(rank, failure.step)
    )
    in_window = is_recorded and not failure.killed
    found = OutOfMemory(
        *(device, *sizes, _holders(rank, device, failure.t_ns) if in_window else None),
        step=failure.step,
        times=failure.times,
        last_tried_bytes=failure.last_tried_bytes,
        line=_line(failure.frames),
        module=_module(rank, failure.module_id),
        is_module_by_order=failure.is_module_by_order,
        state=state,
        library=failure.library,
        inputs=failure.inputs,
        thread=_thread(failure),
        in_backward=bool(failure.in_backward),
        is_capturing=bool(failure.is_capturing),
        failure_id=failure.failure_id,
        is_kill=failure.killed is not None,
        last_steps=read_last_steps(rank, failure),
        ending=_ending(rank, failure),
    )
    if state is None:
        return found
    evidence = _evidence(rank, failure, state)
    if in_window or _never_ended(rank):
        evidence = replace(evidence, loop=_loop_growth(rank, failure))
    if replays and not failure.library and not is_host:
        from gpuledger.analyze.memory.failures.replayed_settings import FailureReplay

        evidence = replace(evidence, replay=FailureReplay(rank, failure), gpus=tuple(gpus))
    besides = Besides() if is_host else _besides(rank, failure, state, evidence.other_bytes)
    return replace(found, besides=besides, cause=find_cause(evidence), remedies=find_remedies(evidence))


def _thread(failure: FailedAllocation) -> str:
    """Return the name of the thread that asked, "" for the main thread. Autograd's belongs to the one that waits."""
    if failure.is_main_thread is not False or (failure.in_backward and not failure.thread):
        return ""
    return failure.thread or ANOTHER_THREAD


def _is_recorded(rank: Rank, step: int) -> bool:
    window = rank.manifest.window
    return window is not None and window.last_step is not None and step <= window.last_step


def _never_ended(rank: Rank) -> bool:
    """Return whether the memory was recorded until the program ended, because none of its steps did."""
    window = rank.manifest.window
    return window is not None and window.last_step is None


def _ending(rank: Rank, failure: FailedAllocation) -> Ending | None:
    """Return the request of the last error, if it ended the program."""
    if not failure.ended_program:
        return None
    if failure.times == 1:
        place = _line(failure.frames), _module(rank, failure.module_id), failure.inputs
        return Ending(failure.tried_bytes, failure.step, *place)
    place = _line(failure.last_frames), _module(rank, failure.last_module_id), failure.last_inputs
    return Ending(failure.last_tried_bytes, failure.last_step, *place)


def _module(rank: Rank, number: int | None) -> str:
    return "" if number is None else module_path(rank, number)


def _line(frames: Sequence[tuple[str, int, str]]) -> str:
    """Return ``file:line in function`` of the program's innermost frame."""
    if not frames:
        return ""
    file, line, function = frames[0]
    return f"{file.rpartition('/')[2]}:{line} in {function}"


def _evidence(rank: Rank, failure: FailedAllocation, state: FailedState) -> Evidence:
    device = failure.device_idx or 0
    growth = next((one for one in find_growth(rank, failure.step) if one.device_idx == device), None)
    inputs = rank.manifest.inputs
    return Evidence(
        failure,
        state,
        capacity_bytes=rank.manifest.device(device).total_bytes,
        other_bytes=_other_bytes(rank, device, failure.t_ns or 0),
        growth=growth,
        usual_inputs=() if inputs is None else inputs.shape,
        usual_peak_bytes=_usual_peak_bytes(rank, device),
        optimizers=rank.manifest.optimizers,
        has_batch=rank.manifest.has_batch is not False,
        number_bytes=number_bytes(rank.manifest),
    )


def _loop_growth(rank: Rank, failure: FailedAllocation) -> LoopGrowth | None:
    device = failure.device_idx or 0
    index = _index_of_error(rank, device, failure.t_ns) if device in device_indices(rank) else None
    has_graphs = failure.grad_enabled is not False
    return None if index is None else find_loop_growth(rank, device, index, has_graphs=has_graphs)


def _other_bytes(rank: Rank, device_idx: int, t_ns: int) -> int | None:
    """Return the bytes of other processes at the sample after ``t_ns``; None if the driver does not show it."""
    pid = rank.manifest.pid
    sizes = _process_bytes(rank, device_idx, t_ns)
    is_told = rank.manifest.processes_known is not False and pid in sizes
    others = [size for process, size in sizes.items() if process != pid]
    return sum(size for size in others if size is not None) if is_told and None not in others else None


def _process_bytes(rank: Rank, device_idx: int, t_ns: int) -> dict[int, int | None]:
    """Return process id -> bytes on the GPU at the sample after ``t_ns``; None for what the driver does not show."""
    table = rank.table("process_samples", ("t_ns", "device_idx", "pid", "bytes"))
    rows = [row for row in table.to_pylist() if row["device_idx"] == device_idx and row["t_ns"] >= t_ns]
    first = min((row["t_ns"] for row in rows), default=None)
    return {row["pid"]: row["bytes"] for row in rows if row["t_ns"] == first}


def _besides(rank: Rank, failure: FailedAllocation, state: FailedState, other_bytes: int | None) -> Besides:
    """Return the rest of the GPU's used memory. Without the driver's list of processes, it cannot be divided."""
    device, capacity = failure.device_idx or 0, rank.manifest.device(failure.device_idx or 0).total_bytes
    own = _process_bytes(rank, device, failure.t_ns or 0).get(rank.manifest.pid or 0)
    if other_bytes is not None and own is not None:
        return Besides(other_bytes, max(own - state.reserved_bytes, 0))
    if capacity is None or failure.free_bytes is None:
        return Besides()
    return Besides(undivided_bytes=max(capacity - failure.free_bytes - state.reserved_bytes, 0))


def _usual_peak_bytes(rank: Rank, device_idx: int) -> int | None:
    """Return the peak of the first half of the steps."""
    table = rank.table("step_memory", ("device_idx", "peak_allocated_bytes"))
    columns = [table.column(name).to_numpy(zero_copy_only=False) for name in ("device_idx", "peak_allocated_bytes")]
    peaks = columns[1][columns[0] == device_idx].astype(np.float64)
    peaks = peaks[~np.isnan(peaks)]
    return int(np.median(peaks)) if peaks.size else None


def _holders(rank: Rank, device_idx: int, t_ns: int | None) -> Breakdown | None:
    """Return the bytes in use at an error in the recorded steps: the first one from a time on, or the last."""
    if device_idx not in device_indices(rank):
        return None
    instant, index = find_peak(rank, device_idx), _index_of_error(rank, device_idx, t_ns)
    return break_down(rank, instant if index is None else replace(instant, index=index, label="oom"))


def _index_of_error(rank: Rank, device_idx: int, t_ns: int | None) -> int | None:
    """Return the allocator's event at an error in the recorded steps; None without its counters."""
    codes, words = read_labels(rank, "counters", "reason", device_idx)
    index, times_ns = (read_numbers(rank, "counters", name, device_idx) for name in ("event_index", "t_ns"))
    failed = (codes == words.index("oom")) & (index >= 0) if "oom" in words else np.zeros(codes.size, dtype=bool)
    if not failed.any():
        return None
    later = failed & (times_ns >= (t_ns or 0))  # counters are read after the error was recorded
    return int(index[later][0]) if t_ns is not None and later.any() else int(index[failed][-1])
