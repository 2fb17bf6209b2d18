"""What would have let a failed request pass, each with the bytes that it frees and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.memory.failures.failed_request import FailedState
    from gpuledger.analyze.memory.failures.oom_cause import Evidence

_OF_THE_BATCH = ("activation", "activation_gradient", "temporary", "input")
_SMALLER = "halve the batch size"
_ORDER = {True: 0, None: 1, False: 2}
_EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True)
class Remedy:
    """One change. ``fits`` is whether the request would have fitted; None if that cannot be known.

    ``saving_bytes`` is what the change frees. ``note`` is a known hazard of it, or the reason for the verdict.
    """

    action: str
    saving_bytes: int
    fits: bool | None
    note: str = ""


def find_remedies(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return changes, those with which the request would have fitted first, then by what they free.

    A leak comes before everything else, and then a limit that the program has set itself.

    A request fits if it is not larger than what the process may still reserve, plus what the change frees. Settings of
    the allocator are replayed. Those with which the request would not have fitted are left out, except for the one that
    PyTorch's own message names.

    Source: the allocator's snapshot at the error, its last events, and the categories of blocks as far as known.
    """
    if (evidence.failure.device_idx or 0) < 0:
        return tuple(_leak(evidence, 0))
    if evidence.failure.library:
        return _for_a_library(evidence)
    state, failure = evidence.state, evidence.failure
    unreserved = _unreserved_bytes(evidence)
    free = state.free
    found = [
        Remedy("empty the cache (torch.cuda.empty_cache())", 0, False),
        *_settings(evidence),
    ]
    for action, saving in _changes(state):
        needed = evidence.tried_bytes // (2 if action == _SMALLER and failure.tried_bytes is not None else 1)
        found.append(Remedy(action, saving, needed <= unreserved + saving + free.largest_bytes))
    other = evidence.other_bytes or 0
    room = _unreserved_bytes(evidence, ended_bytes=other)
    if room > unreserved:  # otherwise the process's own limit comes first
        found.append(Remedy("end other processes on the GPU", other, evidence.tried_bytes <= room))
    found.sort(key=lambda one: (_ORDER[one.fits], -one.saving_bytes))
    return (*_leak(evidence, unreserved), *_own_limit(evidence), *found)


def _for_a_library(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return changes that leave more of the GPU to a library. The size of its request is not known."""
    state = evidence.state
    found = [Remedy(action, saving, None) for action, saving in _changes(state)]
    if state.unused_segments_bytes:
        found.append(Remedy("empty the cache first (torch.cuda.empty_cache())", state.unused_segments_bytes, None))
    if evidence.other_bytes:
        found.append(Remedy("end other processes on the GPU", evidence.other_bytes, None))
    found.sort(key=lambda one: -one.saving_bytes)
    return (*found, Remedy("let PyTorch reserve less (torch.cuda.set_per_process_memory_fraction())", 0, None))


def _changes(state: FailedState) -> list[tuple[str, int]]:
    """Return changes of the training and the bytes that each frees; empty if most categories are not known."""
    if state.known_frac <= 0.5:
        return []
    sizes = state.categories
    changes = [
        (_SMALLER, sum(sizes.get(name, 0) for name in _OF_THE_BATCH) // 2),
        ("checkpoint activations", round(0.8 * sizes.get("activation", 0))),
        ("use 8-bit optimizer states", round(0.75 * sizes.get("optimizer_state", 0))),
    ]
    return [(action, saving) for action, saving in changes if saving]


def _settings(evidence: Evidence) -> list[Remedy]:
    """Return the settings that would have fitted, and expandable segments in any case."""
    own = evidence.failure.alloc_conf
    found = [
        Remedy(f"set PYTORCH_CUDA_ALLOC_CONF={one.alloc_conf}", 0, one.fits, one.note)
        for one in evidence.verdicts
        if one.alloc_conf != own and (one.fits or one.alloc_conf == _EXPANDABLE)
    ]
    if _EXPANDABLE in own:
        found.append(Remedy("pad inputs to a few lengths, because expandable segments are enabled already", 0, None))
    return found


def _leak(evidence: Evidence, unreserved: int) -> list[Remedy]:
    """Return the change that frees what grows, if something does."""
    if evidence.growth is None:
        return []
    saving = evidence.growth.grown_bytes
    return [Remedy("free what grows step after step", saving, evidence.tried_bytes <= unreserved + saving)]


def _own_limit(evidence: Evidence) -> list[Remedy]:
    """Return the larger limit with which the request would have fitted, if the program limits itself."""
    free = evidence.failure.free_bytes
    if evidence.own_limit_bytes is None or free is None:
        return []
    needed = format_bytes(evidence.state.reserved_bytes + evidence.tried_bytes)
    action = f"raise the process's limit to more than {needed} (torch.cuda.set_per_process_memory_fraction())"
    return [Remedy(action, 0, evidence.tried_bytes <= free)]


def _unreserved_bytes(evidence: Evidence, ended_bytes: int = 0) -> int:
    """Return the bytes that the process could still reserve: free on the GPU, and within its own limit.

    Args:
        evidence: The failed request.
        ended_bytes: Bytes of other processes that count as free, too.
    """
    limit, free = evidence.limit_bytes, evidence.failure.free_bytes
    within = [] if limit is None else [limit - evidence.state.reserved_bytes]
    return max(min([*within, *([] if free is None else [free + ended_bytes])], default=0), 0)
