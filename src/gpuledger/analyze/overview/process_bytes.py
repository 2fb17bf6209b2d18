"""GPU memory of processes as the driver lists it, and the recorded process's memory outside the caching allocator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuledger.analyze.memory.lifetimes import read_labels, read_numbers
from gpuledger.units import counted, format_bytes

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

CONTEXT, LIBRARY, NCCL, LATER = "context", "library", "nccl", "later"
FIRST_STEPS = 3
"""Steps in which libraries are loaded. What a process gains later is not known to be a library's."""

_CONTEXT_COMES = {"call": "before the first module call", "operator": "until the first operator ended"}
"""Reason of the sample up to which memory is the context's, the first that there is -> when that memory came."""
_BEFORE_COLLECTIVE, _AFTER_COLLECTIVE = "collective_start", "collective_end"


@dataclass(frozen=True)
class ProcessBytes:
    """Memory of the processes on a GPU at one time. ``own_bytes`` and ``other_bytes`` are None if unknown."""

    own_bytes: int | None
    other_bytes: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gain:
    """Memory that the process took from the driver, outside the allocator, by the end of ``step``.

    ``name`` is the line of the balance, or :data:`LATER` for memory that came after the first steps. ``group`` is the
    process group that communicated for the first time; "" if none did.
    """

    name: str
    step: int
    bytes: int
    group: str = ""


@dataclass(frozen=True)
class OutsideBytes:
    """The process's memory outside the caching allocator at one time, as lines of the balance.

    ``context_bytes`` is None if it was neither read before the first module call nor measured separately. It is then
    part of ``library_bytes``.
    ``nccl_bytes`` is None if no collective was seen.
    """

    context_bytes: int | None
    library_bytes: int
    nccl_bytes: int | None
    gains: tuple[Gain, ...]
    context_when: str = ""
    """When the context's memory came; "" if it was not read in the process."""

    @property
    def total_bytes(self) -> int:
        """Return the sum of the lines."""
        return (self.context_bytes or 0) + self.library_bytes + (self.nccl_bytes or 0)

    def when(self, name: str) -> str:
        """Return in which steps a line's memory came, and with which process group, as text; "" if none came."""
        sizes: dict[tuple[str, int], int] = {}
        for gain in self.gains:
            if gain.name == name:
                sizes[gain.group, gain.step] = sizes.get((gain.group, gain.step), 0) + gain.bytes
        parts = [
            f"{format_bytes(size)} in step {step}" + (f" with {group}" if group else "")
            for (group, step), size in sizes.items()
            if size > 0
        ]
        return ", ".join(parts)


def list_processes(rank: Rank, device_idx: int, t_ns: int) -> ProcessBytes:
    """Return the memory of this process and of the others in the driver's list at ``t_ns``.

    Source: NVML process list. In a container it can have the host's process ids. A process that is alone on the GPU is
    then assumed to be this one.
    """
    return _divide(rank, _listed(rank, device_idx, {t_ns}).get(t_ns, []))


def _listed(rank: Rank, device_idx: int, times_ns: set[int]) -> dict[int, list[tuple[int, int]]]:
    """Return time -> process ids and bytes in the driver's list at these times; bytes are -1 if it hides them."""
    columns = [read_numbers(rank, "process_samples", name, device_idx) for name in ("t_ns", "pid", "bytes")]
    found: dict[int, list[tuple[int, int]]] = {}
    wanted = np.isin(columns[0], list(times_ns))
    for t_ns, pid, size in zip(*(column[wanted].tolist() for column in columns), strict=True):
        found.setdefault(t_ns, []).append((pid, size))
    return found


def _divide(rank: Rank, listed: list[tuple[int, int]]) -> ProcessBytes:
    """Return the memory of this process and of the others, from one list of the driver's."""
    known = [(pid, size) for pid, size in listed if size >= 0]
    own = [size for pid, size in known if pid == rank.manifest.pid]
    has_tags = rank.manifest.recorder.has_tags
    if not known:
        hidden = "The driver did not list the processes on the GPU. Others are part of the unaccounted memory."
        return ProcessBytes(None, None, (hidden,))
    if has_tags and (own or len(listed) == 1):
        only_own = "The file has the memory of this process only, as the driver reported it."
        return ProcessBytes(sum(own) or known[0][1], None, (only_own,))
    if own:
        some = "The driver hides the memory of some processes. It is part of the unaccounted memory."
        return ProcessBytes(
            sum(own), sum(size for _, size in known) - sum(own), () if len(known) == len(listed) else (some,)
        )
    if len(listed) == 1:
        alone = f"The only process on the GPU (process id {known[0][0]} to the driver) is assumed to be this one."
        return ProcessBytes(known[0][1], 0, (alone,))
    missing = "The driver's list does not include this process. Other processes are part of the unaccounted memory."
    return ProcessBytes(None, None, (missing,))


def has_context_reading(rank: Rank) -> bool:
    """Return whether the context was read in the process itself on every GPU on which it allocated memory.

    A rank of several sees the GPUs of the others, too.
    """
    counters = rank.table("counters", ("device_idx", "reserved_bytes")).to_pylist()
    used = {int(row["device_idx"]) for row in counters if row["reserved_bytes"]}
    found = [read_outside(rank, device_idx) for device_idx in used if device_idx >= 0]
    return bool(found) and all(one is not None and one.context_bytes is not None for one in found)


def read_outside(rank: Rank, device_idx: int, until_ns: int | None = None) -> OutsideBytes | None:
    """Return the process's memory outside the allocator at its last sample until ``until_ns``; None if never read.

    Without a sample before the first module call, the one after the first operator counts. Without both, the context is
    the one that was measured separately, if there is one.

    Source: NVML process list minus the allocator's reserved bytes of the same time, in the recorded process; exact to
    the driver's 2 MiB pages. Assumed: memory that comes before the first module call, or until the first operator has
    ended, is the context's, memory that comes during the first collective of a process group is NCCL's, and all other
    is the libraries'.
    """
    if rank.manifest.recorder.is_imported or device_idx < 0:
        return None
    rows = _samples(rank, device_idx)
    read = next((reason for reason in _CONTEXT_COMES if any(row.reason == reason for row in rows)), "")
    gains = [gain for t_ns, gain in _gains(rank, rows, read) if until_ns is None or t_ns <= until_ns]
    if not gains:
        return None
    sizes = {name: _sum(gains, name) for name in (CONTEXT, LIBRARY, NCCL, LATER)}
    context_bytes: int | None = sizes[CONTEXT]
    library_bytes = sizes[LIBRARY] + min(sizes[LATER], 0)
    was_read = any(gain.name == CONTEXT for gain in gains)
    if not was_read:
        apart = rank.manifest.libraries
        context_bytes = (
            None if apart is None or apart.context_bytes is None else min(apart.context_bytes, library_bytes)
        )
        library_bytes -= context_bytes or 0
    has_nccl = any(gain.name == NCCL for gain in gains)
    nccl_bytes, when = sizes[NCCL] if has_nccl else None, _CONTEXT_COMES[read] if was_read else ""
    return OutsideBytes(context_bytes, library_bytes, nccl_bytes, tuple(gains), when)


def _sum(gains: list[Gain], name: str) -> int:
    return sum(gain.bytes for gain in gains if gain.name == name)


def _gains(rank: Rank, rows: list[_Sample], context_read: str) -> Iterator[tuple[int, Gain]]:
    """Yield the time of each sample of the process, and what it gained outside the allocator since the one before."""
    until_call = next((row.t_ns for row in rows if row.reason == context_read), None)
    communications = list(rank.manifest.communications)
    before: _Sample | None = None
    for row in rows:
        group = ""
        if row.reason == _AFTER_COLLECTIVE and before is not None and before.reason == _BEFORE_COLLECTIVE:
            name = NCCL
            while communications and communications[0].t_ns <= row.t_ns:
                one = communications.pop(0)
                group = f"{one.group} ({counted(one.size, 'rank')})"
        elif until_call is not None and row.t_ns <= until_call:
            name = CONTEXT
        else:
            name = LIBRARY if row.step < rows[0].step + FIRST_STEPS else LATER
        yield row.t_ns, Gain(name, row.step, row.outside_bytes - (before.outside_bytes if before else 0), group)
        before = row


class _Sample(NamedTuple):
    """One sample of the recorded process, in or at the end of ``step``."""

    t_ns: int
    reason: str
    step: int
    outside_bytes: int


def _samples(rank: Rank, device_idx: int) -> list[_Sample]:
    """Return the samples of the recorded process that were taken together with the allocator's counters, by time."""
    codes, words = read_labels(rank, "counters", "reason", device_idx)
    columns = [read_numbers(rank, "counters", name, device_idx).tolist() for name in ("t_ns", "step", "reserved_bytes")]
    listed = _listed(rank, device_idx, set(columns[0]))
    found = []
    for t_ns, code, seen, reserved_bytes in sorted(zip(columns[0], codes.tolist(), *columns[1:], strict=True)):
        own_bytes = _divide(rank, listed.get(t_ns, [])).own_bytes
        step = seen if words[code] in ("step_end", "close") else seen + 1
        if own_bytes is not None:
            found.append(_Sample(t_ns, words[code], step, own_bytes - reserved_bytes))
    return found
