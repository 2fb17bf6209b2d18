"""Out-of-memory errors and memory that grows: why, what would have helped, and a map of segments and blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.memory.failures.memory_map import FREE, TOO_SMALL, read_memory_map
from gpuledger.report.base.colors import category_color
from gpuledger.report.html.sections.section import Page, Section, script
from gpuledger.report.text.growth_text import growth_text
from gpuledger.report.text.oom_text import last_steps_table, memory_texts, remedy_text, request_text

if TYPE_CHECKING:
    from gpuledger.analyze.memory.failures.memory_map import MappedSegment
    from gpuledger.analyze.memory.failures.oom import OutOfMemory
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.watched_card import WatchedCard
    from gpuledger.model.run import Rank

_FREE_COLORS = {FREE: "#d9d9de", TOO_SMALL: "#f4b8b8"}


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    rank = device.rank
    failures = [one for of, one in page.view.out_of_memory if of is rank and one.device_idx == device.device_idx]
    growth = [one for one in page.view.growth if one.rank == rank.number and one.device_idx in (-1, device.device_idx)]
    return {
        "failures": [_failure(rank, one) for one in failures if one.cause is not None],
        "growth": [growth_text(one) for one in growth],
    }


def _no_data(card: WatchedCard, page: Page) -> dict[str, Any]:
    return {"failures": [], "growth": []}


def _failure(rank: Rank, failure: OutOfMemory) -> dict[str, Any]:
    number = failure.failure_id
    facts = [] if number is None else [one for one in rank.manifest.oom if one.failure_id == number]
    segments, others = read_memory_map(rank, facts[0]) if facts else ([], 0)
    assert failure.cause is not None
    return {
        "cause": failure.cause.sentence,
        "request": request_text(rank, failure),
        "memory": memory_texts(failure),
        "last_steps": last_steps_table(failure),
        "remedies": [remedy_text(one) for one in failure.remedies],
        "others": others,
        "totals": [[what, size, _color(what)] for what, size in _totals(segments).most_common()],
        "segments": [
            {
                "address": f"{one.address:#x}",
                "bytes": one.bytes,
                "pool": one.pool_id,
                "parts": [[size, _color(what)] for what, size in one.parts],
                "totals": list(one.totals.items()),
            }
            for one in segments
        ],
    }


def _color(what: str) -> str:
    return _FREE_COLORS.get(what) or category_color(what)


def _totals(segments: Sequence[MappedSegment]) -> Counter[str]:
    """Return what -> bytes in all segments that are drawn."""
    found = Counter[str]()
    for one in segments:
        found.update(one.totals)
    return found


SECTION = Section(
    name="failures",
    heading="Out of memory and growth",
    scripts=(script("failures.js"),),
    data=_data,
    card_data=_no_data,
    body="""<div id="failures"></div>""",
    is_hidden=True,
)
