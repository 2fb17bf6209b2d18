"""Free memory at an out-of-memory error, by whether the request could use it. The snapshots are made of numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from failing_allocator import BASE, FACTS, MIB, Recorded, card, snapshot

from gpuledger.analyze.memory.failures.failed_request import FreeBytes
from gpuledger.report.text.oom_text import memory_texts

__all__ = ["card"]

pytestmark = pytest.mark.torch

USED_MIB, TRIED = 40, 30 * MIB


def segment(number: int, *sizes_mib: int, expandable: bool = True, **changes: Any) -> dict[str, Any]:
    """Return a segment with blocks of some sizes: free ones, and those of :data:`USED_MIB` that are in use."""
    address = at = BASE + number * (1 << 32)
    blocks = []
    for size in sizes_mib:
        state = "active_allocated" if size == USED_MIB else "inactive"
        blocks.append({"address": at, "size": size * MIB, "requested_size": size * MIB, "state": state})
        at += size * MIB
    (taken,) = snapshot([at - address], [])["segments"]
    return {**taken, "address": address, "is_expandable": expandable, "blocks": blocks, **changes}


def free_memory(
    show: Callable[..., None], directory: Path, segments: list[dict[str, Any]]
) -> tuple[FreeBytes, list[str], str]:
    """Return the free memory at an error, the line about it, and why the request failed."""
    show({**snapshot([], []), "segments": segments}, USED_MIB * MIB)
    recorded = Recorded(directory)
    recorded.failures.happened({**FACTS, "free_bytes": None, "tried_bytes": TRIED}, 812)
    found = recorded.explain()
    assert found.state is not None
    assert found.cause is not None
    texts = [one for one in memory_texts(found) if one.startswith("free in reserved")]
    return found.state.free, texts, found.cause.sentence


def test_the_end_of_an_expandable_segment_is_a_kind_of_its_own(card: Callable[..., None], tmp_path: Path) -> None:
    """A piece between blocks is not at the end, nor is the end of a segment that cannot grow."""
    segments = [segment(0, 3, USED_MIB, 5, USED_MIB, 12), segment(1, USED_MIB, 7, expandable=False)]
    free, texts, _ = free_memory(card, tmp_path, segments)
    sizes = {"usable_bytes": 15 * MIB, "largest_bytes": 7 * MIB, "pieces": 3}
    assert free == FreeBytes(**sizes, tail_bytes=12 * MIB, largest_tail_bytes=12 * MIB, tails=1)
    usable = "15.0 MiB usable in 3 pieces of at most 7.0 MiB"
    end = "12.0 MiB at the end of 1 expandable segment that could not grow by 18.0 MiB"
    assert texts == [f"free in reserved memory: {usable}, {end}"]


def test_of_several_ends_the_largest_would_have_to_grow_least(card: Callable[..., None], tmp_path: Path) -> None:
    free, texts, cause = free_memory(card, tmp_path, [segment(number, USED_MIB, 12 + number) for number in range(3)])
    assert free == FreeBytes(tail_bytes=39 * MIB, largest_tail_bytes=14 * MIB, tails=3)
    ends = "39.0 MiB at the ends of 3 expandable segments that could not grow by 16.0 MiB"
    assert texts == [f"free in reserved memory: {ends}"]
    assert cause == "39.0 MiB are free, but in 3 pieces of at most 14.0 MiB: the memory is fragmented"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"stream": 7}, "other_stream_bytes"),
        ({"segment_pool_id": (1, 0)}, "private_pool_bytes"),
        ({"segment_type": "small"}, "other_size_bytes"),
    ],
)
def test_an_end_that_no_growth_makes_usable_is_of_the_other_kinds(
    changes: dict[str, Any], kind: str, card: Callable[..., None], tmp_path: Path
) -> None:
    others = [segment(number, USED_MIB) for number in (1, 2)]
    free, _, _ = free_memory(card, tmp_path, [segment(0, USED_MIB, 12, **changes), *others])
    assert free == replace(FreeBytes(), **{kind: 12 * MIB})


def test_an_end_that_is_large_enough_is_usable(card: Callable[..., None], tmp_path: Path) -> None:
    free, _, _ = free_memory(card, tmp_path, [segment(0, USED_MIB, 31)])
    assert free == FreeBytes(31 * MIB, 31 * MIB, 1)
