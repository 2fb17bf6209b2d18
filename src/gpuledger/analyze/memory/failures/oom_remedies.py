"""What would have let a failed request pass, each with the bytes that it frees and a verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.failures.oom_cause import holder_text, is_grown
from gpuledger.analyze.memory.failures.smaller_blocks import SmallerBlocks
from gpuledger.analyze.memory.small_states import LARGE_BYTES, LEAST_ELEMENTS, SHARE, SMALL_BYTES, has_8_bit_form
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.memory.failures.oom_cause import Evidence

_OF_THE_BATCH = ("activation", "activation_gradient", "temporary", "input", "cache")
_WEIGHTS, _GRADIENTS = ("weight", "sharded_weight"), ("gradient", "sharded_gradient")
_STATES = "optimizer_state", "sharded_optimizer_state"
_SMALLER = "halve the batch size or the length of sequences"
_IN_PARTS = "process the input in two parts"
"""Instead of a smaller batch, if the input has no dimension of a batch."""
_LARGER_GPU = 1.05
"""Smallest ratio of two GPUs' memory from which on one is the larger."""
_MOST_GPUS = 3
"""Number of GPUs for which the requests are replayed, which takes up to a second each."""
_ORDER = {True: 0, None: 1, False: 2}
_EXPANDABLE = "expandable_segments:True"
_POSTPONED = "only postpones the error, because memory grows"


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

    A leak comes before everything else, and then a limit that the program has set itself. Beside a leak that is the
    cause, no other change lasts.

    The last requests are replayed with each setting of the allocator, with smaller blocks, or on a larger GPU. Settings
    with which the request would not have fitted are left out, except for the one that PyTorch's own message names.
    Without a replay, a request fits if it is not larger than what the process may still reserve, plus what the change
    frees.

    Source: the allocator's snapshot at the error, its last events, and the categories of blocks as far as known.
    """
    if (evidence.failure.device_idx or 0) < 0:
        return () if evidence.failure.killed else tuple(_leak(evidence, 0))
    if evidence.failure.library:
        return _for_a_library(evidence)
    unreserved = _unreserved_bytes(evidence)
    found = [
        Remedy("empty the cache (torch.cuda.empty_cache())", 0, False),
        *_settings(evidence),
        *_smaller(evidence, unreserved),
        *_larger_gpu(evidence),
    ]
    other = evidence.other_bytes or 0
    room = _unreserved_bytes(evidence, ended_bytes=other)
    if room > unreserved:  # otherwise the process's own limit comes first
        found.append(Remedy("end other processes on the GPU", other, evidence.tried_bytes <= room))
    found.sort(key=lambda one: (_ORDER[one.fits], -one.saving_bytes))
    others = [*_own_limit(evidence), *found]
    if is_grown(evidence):
        others = [
            replace(one, note="; ".join(filter(None, (one.note, _POSTPONED)))) if one.fits else one for one in others
        ]
    return (*_leak(evidence, unreserved), *others)


def _for_a_library(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return changes that leave more of the GPU to a library. The size of its request is not known."""
    state = evidence.state
    found = [Remedy(action, _saving(evidence, change), None) for action, change in _changes(evidence)]
    if state.unused_segments_bytes:
        found.append(Remedy("empty the cache first (torch.cuda.empty_cache())", state.unused_segments_bytes, None))
    if evidence.other_bytes:
        found.append(Remedy("end other processes on the GPU", evidence.other_bytes, None))
    found.sort(key=lambda one: -one.saving_bytes)
    return (*found, Remedy("let PyTorch reserve less (torch.cuda.set_per_process_memory_fraction())", 0, None))


def _smaller(evidence: Evidence, unreserved: int) -> list[Remedy]:
    """Return changes of the training, each replayed; without a replay, by the bytes that it frees."""
    found = []
    for action, change in _changes(evidence):
        saving = _saving(evidence, change)
        fits = None if evidence.replay is None else evidence.replay.fits_with(change)
        note = ""
        if fits is None:
            tried = evidence.tried_bytes * change.tried_share
            fits = tried <= unreserved + saving + evidence.state.free.largest_piece_bytes
            note = "by its bytes, not replayed"
        found.append(Remedy(action, saving, fits, note))
    return found


def _saving(evidence: Evidence, change: SmallerBlocks) -> int:
    """Return the bytes that a change frees. The replay alone knows which blocks are too small."""
    by_block = 0 if evidence.replay is None else evidence.replay.saved_bytes(change)
    sizes = dict(evidence.state.categories)
    sizes["input"] = sizes.get("input", 0) - evidence.state.data_bytes
    whole = sum(size - change.left_bytes(size, name) for name, size in sizes.items())
    return by_block or whole


def _changes(evidence: Evidence) -> list[tuple[str, SmallerBlocks]]:
    """Return changes of the training with which less is in use; empty if most categories are not known."""
    sizes = evidence.state.categories
    if evidence.state.known_frac <= 0.5:
        return []
    # what an optimizer asks for does not depend on the batch
    tried_share = 1.0 if evidence.failure.in_optimizer else 0.5
    smaller = _SMALLER if evidence.has_batch else _IN_PARTS
    changes = {
        smaller: SmallerBlocks(dict.fromkeys(_OF_THE_BATCH, 0.5), tried_share=tried_share),
        "checkpoint activations": SmallerBlocks({"activation": 0.2}),
    }
    if _has_large_states(evidence):
        least_bytes = LEAST_ELEMENTS * evidence.number_bytes
        changes["use 8-bit optimizer states"] = SmallerBlocks(dict.fromkeys(_STATES, SHARE), least_bytes)
    return [(action, change) for action, change in changes.items() if any(map(sizes.get, change.shares))]


def _has_large_states(evidence: Evidence) -> bool:
    """Return whether there is an optimizer that can have 8-bit states, and does not have them, or less, already."""
    sizes = evidence.state.categories
    held = [sum(sizes.get(one, 0) for one in some) for some in (_WEIGHTS, _GRADIENTS, _STATES)]
    weights, state_bytes = max(held[:2]) / evidence.number_bytes, held[2]
    if evidence.optimizers and not any(map(has_8_bit_form, evidence.optimizers)):
        return False
    return not weights or SMALL_BYTES * weights < state_bytes <= LARGE_BYTES * weights


def _larger_gpu(evidence: Evidence) -> list[Remedy]:
    """Return the smallest of the other GPUs with which the request would have fitted, beside all that used this one."""
    capacity, free, reserved = evidence.capacity_bytes, evidence.failure.free_bytes, evidence.state.reserved_bytes
    if capacity is None or free is None or evidence.own_limit_bytes is not None:
        return []
    larger = sorted((size, name) for name, size in evidence.gpus if size >= _LARGER_GPU * capacity)
    outside = capacity - free - reserved
    needed = evidence.state.allocated_bytes + evidence.tried_bytes
    replays = 0
    for size, name in larger:
        room = size - outside
        if room < needed or replays == _MOST_GPUS:
            continue
        replays += 1
        fits = None if evidence.replay is None else evidence.replay.fits_within(room)
        if fits or (fits is None and reserved + evidence.tried_bytes <= room):
            return [Remedy(f"use a GPU with more memory, such as {name} ({format_bytes(size)})", 0, True)]
    return [Remedy(f"use {larger[-1][1]}, the largest GPU that is known", 0, False)] if larger else []


def _settings(evidence: Evidence) -> list[Remedy]:
    """Return the settings that would have fitted, and expandable segments in any case."""
    own = evidence.failure.alloc_conf
    verdicts = () if evidence.replay is None else evidence.replay.verdicts()
    found = [
        Remedy(f"set PYTORCH_CUDA_ALLOC_CONF={one.alloc_conf}", 0, one.fits, one.note)
        for one in verdicts
        if one.alloc_conf != own and (one.fits or one.alloc_conf == _EXPANDABLE)
    ]
    if _EXPANDABLE in own:
        found.append(Remedy("pad inputs to a few lengths, because expandable segments are enabled already", 0, None))
    return found


def _leak(evidence: Evidence, unreserved: int) -> list[Remedy]:
    """Return the change that frees what grows, if something does."""
    if evidence.growth is None:
        return []
    saving, holder = evidence.growth.grown_bytes, evidence.growth.holder
    held = "" if holder is None else f"held by {holder_text(holder)}"
    fits = evidence.tried_bytes <= unreserved + saving
    return [Remedy("free what grows step after step", saving, fits, held)]


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
