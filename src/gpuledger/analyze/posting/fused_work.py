"""Divide the time of compiled kernels among the modules and source lines that they compute.

A kernel of several of these becomes one span for each, one after the other, with lengths in proportion to the bytes
that each part reads and writes. They sum to the kernel's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.module_paths import ModulesBelow
from gpuledger.analyze.posting.activities import OwnedSpans
from gpuledger.analyze.posting.graph_replays import activity_words
from gpuledger.model.journal.journal import FUSION_RANGE
from gpuledger.model.journal.reading import Journal
from gpuledger.model.pass_facts import Fusion

Shares = list[tuple[int, int, float]]
"""Module ids, ids of stacks (-1 for none) and shares of a kernel, which sum to 1."""


def kernel_names(facts: dict[str, Any]) -> list[str]:
    """Return the names of activities. A range around a compiled kernel gets the kernel's name."""
    fusions = facts.get("fusions") or []
    found = []
    for word in activity_words(facts):
        number = word.removeprefix(FUSION_RANGE)
        is_known = number != word and number.isdecimal() and int(number) < len(fusions)
        found.append(str(fusions[int(number)]["kernel"]) if is_known else word)
    return found


def shares_of(below: ModulesBelow, fusion: Fusion, base: int) -> Shares:
    """Return the modules and lines of a kernel that was launched inside module ``base``."""
    found: dict[tuple[int, int], float] = {}
    for part in fusion.parts:
        place = below.find(base, part.path, part.module_id), part.stack_id
        found[place] = found.get(place, 0.0) + max(part.moved_bytes, 0)
    total = sum(found.values())
    if not found:
        return [(base, -1, 1.0)]
    return [(*place, size / total if total else 1 / len(found)) for place, size in found.items()]


def divide_fused(owned: OwnedSpans, fusions: Sequence[Fusion], journal: Journal) -> OwnedSpans:
    """Return the spans with compiled kernels on their modules and source lines."""
    fusion_id = np.where(owned.fusion_id < len(fusions), owned.fusion_id, -1)
    fused = np.flatnonzero(fusion_id >= 0)
    if not fused.size:
        return replace(owned, fusion_id=fusion_id)
    below = ModulesBelow(journal.modules)
    known: dict[tuple[int, int], Shares] = {}
    divided_among: list[Shares] = [[] for _ in range(fusion_id.size)]
    for span in fused.tolist():
        key = int(fusion_id[span]), int(owned.module_id[span])
        if key not in known:
            known[key] = shares_of(below, fusions[key[0]], key[1])
        divided_among[span] = known[key]
    like = np.repeat(np.arange(fusion_id.size), [len(shares) or 1 for shares in divided_among])
    divided = _picked(replace(owned, fusion_id=fusion_id), like)
    every = [part for shares in divided_among for part in (shares or [(-1, -1, 1.0)])]
    module_id, stack_id = np.array([part[:2] for part in every], dtype=np.int64).reshape(-1, 2).T
    module_id = np.where(divided.fusion_id >= 0, module_id, divided.module_id)
    divided = replace(divided, stack_id=np.where(stack_id >= 0, stack_id, divided.stack_id))
    return _cut(divided, like, np.array([part[2] for part in every], dtype=np.float64), module_id)


def _picked(owned: OwnedSpans, like: NDArray[np.int64]) -> OwnedSpans:
    work = replace(owned.work, **{one.name: getattr(owned.work, one.name)[like] for one in fields(owned.work)})
    columns = {one.name: getattr(owned, one.name)[like] for one in fields(owned) if one.name != "work"}
    return OwnedSpans(**columns, work=work)


def _cut(
    owned: OwnedSpans, like: NDArray[np.int64], share: NDArray[np.float64], module_id: NDArray[np.int64]
) -> OwnedSpans:
    """Return the spans cut by their shares: each part begins where the one before ends."""
    done = np.cumsum(share)
    first = np.searchsorted(like, like, "left")
    before = done - share - (done - share)[first]
    length = owned.end_ns - owned.start_ns
    last = np.append(like[1:] != like[:-1], True) if like.size else np.zeros(0, dtype=bool)
    start = owned.start_ns + np.round(before * length).astype(np.int64)
    end = np.where(last, owned.end_ns, owned.start_ns + np.round((before + share) * length).astype(np.int64))
    work = replace(owned.work, flops=owned.work.flops * share, moved_bytes=owned.work.moved_bytes * share)
    return replace(owned, start_ns=start, end_ns=end, module_id=module_id, work=work)
