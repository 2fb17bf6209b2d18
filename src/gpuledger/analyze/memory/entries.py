"""Entries: live memory at one instant under full names. Keywords are matched with these names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.breakdown import CodedTexts, coded_categories, coded_modules, coded_texts, sum_by_texts
from gpuledger.analyze.memory.lifetimes import read_lives
from gpuledger.model.accounts import ROUNDING

if TYPE_CHECKING:
    from gpuledger.analyze.memory.instant import Instant
    from gpuledger.model.run import Rank


@dataclass(frozen=True, slots=True)
class Entry:
    """Live blocks with the same name.

    ``name`` is ``category:module.path:scope:tensor``, or the block's tag if the run was imported from a tagging
    profiler (``tag`` is "" otherwise). ``bytes`` are requested bytes. Allocated minus requested bytes are the entry
    ``rounding:::``.
    """

    name: str
    category: str
    module: str
    scope: str
    tag: str
    bytes: int
    blocks: int
    tensor: str = ""


def list_entries(rank: Rank, instant: Instant) -> tuple[Entry, ...]:
    """Return the entries at ``instant``, largest first; their bytes sum to the allocated bytes.

    Source: caching allocator's history, or the imported file.
    """
    device = instant.device_idx
    lives = read_lives(rank, device)
    live = lives.allocated_at(instant.index)
    coded = [(codes[live], texts) for codes, texts in (read(rank, device) for read in _READERS)]
    requested, allocated = lives.requested_bytes[live], lives.allocated_bytes[live]
    tagged = is_tagged(rank)
    entries = [_entry(texts, size, count, tagged=tagged) for texts, size, count in sum_by_texts(coded, requested)]
    rounded = int(allocated.sum() - requested.sum())
    if rounded:
        entries.append(_entry((ROUNDING, "", "", ""), rounded, int((allocated != requested).sum()), tagged=False))
    return tuple(sorted(entries, key=lambda entry: (-entry.bytes, entry.name, entry.category)))


def is_tagged(rank: Rank) -> bool:
    """Return whether the blocks carry tags of an older profiler, each of which is an entry's whole name."""
    return rank.manifest.recorder.has_tags


def _entry(texts: tuple[str, ...], size: int, blocks: int, *, tagged: bool) -> Entry:
    category, module, scope, tensor = texts
    tag = tensor if tagged else ""
    return Entry(tag or ":".join(texts), category, module, scope, tag, size, blocks, tensor)


def classes_by_path(rank: Rank) -> dict[str, frozenset[str]]:
    """Return module path -> classes of the module and of the modules around it, without the outermost one.

    An outermost module has only its own class: a whole network's class would put everything into one group.
    """
    table = rank.table("modules", ("module_id", "parent_id", "path", "class_name"))
    rows = {row["module_id"]: row for row in table.to_pylist()}
    found: dict[str, frozenset[str]] = {}
    for row in rows.values():
        classes, at, hops = {row["class_name"]}, row, 0
        while (holder := rows.get(at["parent_id"])) is not None and hops < len(rows):
            at, hops = holder, hops + 1
            if holder["parent_id"] is not None:
                classes.add(holder["class_name"])
        found[row["path"]] = found.get(row["path"], frozenset()) | classes
    return found


def _coded_scopes(rank: Rank, device_idx: int) -> CodedTexts:
    return coded_texts(rank, device_idx, "scope_id")


def _coded_tensors(rank: Rank, device_idx: int) -> CodedTexts:
    return coded_texts(rank, device_idx, "name_id")


_READERS: tuple[Callable[[Rank, int], CodedTexts], ...] = (
    coded_categories,
    coded_modules,
    _coded_scopes,
    _coded_tensors,
)
