"""Groups as text and as JSON: one table per dictionary, with each group's largest entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.keywords.keyword_file import UNTRACKABLE
from gpuledger.analyze.memory.groups import UNNAMED, module_label
from gpuledger.analyze.memory.tree import ROUNDING_PATH
from gpuledger.model.accounts import ROUNDING
from gpuledger.model.schema.tables import SCHEMA_VERSION
from gpuledger.report.base.colors import category_color, stack_order
from gpuledger.report.base.phrases import allocated_text, column_unit, device_text, entry, instant_title
from gpuledger.report.base.terminal import BOLD, DIM, Bar, Cell, Terminal, TextColumn, TextTable
from gpuledger.report.json.document import instant_document, place_document
from gpuledger.report.text.tables import Row, Scale
from gpuledger.units import counted, format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.keywords.keyword_groups import EntryGroup, GroupedEntries, Grouping, Overlap
    from gpuledger.analyze.memory.entries import Entry

UNTRACKABLE_COLOR = "#8b949e"
OVERLAPS_SHOWN = 8


def grouping_lines(
    grouping: Grouping, top: int, terminal: Terminal, classes: Mapping[str, str] | None = None
) -> list[str]:
    """Return a head and one table per dictionary, with the ``top`` largest entries of each group."""
    device = device_text(grouping.device_idx, grouping.device_name, grouping.rank_of_several)
    text = allocated_text(grouping.allocated_bytes, grouping.instant, device, classes)
    lines = entry(terminal, instant_title(grouping.instant), text)
    for place, one in enumerate(grouping.dictionaries):
        last = place + 1 == len(grouping.dictionaries)
        table = _table(one, grouping, top, classes or {}, listed=last)
        lines += ["", *table.lines(terminal), *_beside(one, terminal)]
    return lines


def _table(one: GroupedEntries, grouping: Grouping, top: int, classes: Mapping[str, str], *, listed: bool) -> TextTable:
    """Return a dictionary's table; ``listed`` adds the parts of Untrackable."""
    total, left = grouping.total_bytes, grouping.untrackable
    scale = Scale(column_unit(grouping.allocated_bytes), total)
    largest = max([1, left.bytes or 0, *(group.bytes for group in one.groups)])
    filled = [group for group in one.groups if group.entries]
    body: list[Row] = [row for group in filled for row in _group_rows(group, scale, largest, max(top, 0), classes)]
    if left.bytes is not None:
        bar = Bar(((left.bytes / largest, UNTRACKABLE_COLOR),))
        body.append((Cell(UNTRACKABLE, BOLD), "", *scale.cells(left.bytes, BOLD), "", bar))
        if listed:
            body += [
                (Cell(f"  {line.name}", DIM), "", *scale.cells(line.bytes, DIM), "", Bar(())) for line in left.lines
            ]
    body.append((Cell("total", BOLD), "", *scale.cells(total, BOLD), "", Bar(())))
    columns = [
        TextColumn(f"by {one.dictionary}", shrinks=True),
        TextColumn("category", optional=3),
        TextColumn(scale.unit.name, right=True),
        TextColumn("share", right=True),
        TextColumn("blocks", right=True, optional=2),
        TextColumn(bar=True, optional=1),
    ]
    if not top or all(entry.tag for group in filled for entry in group.entries):
        # Only rows of entries have a category. A tag contains it.
        del columns[1]
        body = [(label, *cells) for label, _, *cells in body]
    return TextTable(tuple(columns), tuple(body))


def _group_rows(group: EntryGroup, scale: Scale, largest: int, top: int, classes: Mapping[str, str]) -> list[Row]:
    count = Cell(f"{group.blocks:,}", BOLD)
    rows: list[Row] = [(Cell(group.name, BOLD), "", *scale.cells(group.bytes, BOLD), count, _bar(group, largest))]
    for one in group.entries[:top]:
        category = Cell("" if one.category == ROUNDING else one.category, color=category_color(one.category))
        label = f"  {entry_label(one, classes)}"
        rows.append((label, category, *scale.cells(one.bytes), f"{one.blocks:,}", Bar(())))
    rest = group.entries[top:]
    if rest and top:
        left = sum(one.bytes for one in rest)
        rows.append((Cell(f"  … {len(rest):,} more", DIM), "", *scale.cells(left, DIM), "", Bar(())))
    return rows


def entry_label(one: Entry, classes: Mapping[str, str]) -> str:
    """Return an entry's label: its tag, or its module and the name of its tensor, with its scope in brackets.

    Args:
        one: The entry.
        classes: Module path -> class.
    """
    if one.tag:
        return one.tag
    if one.category == ROUNDING:
        return ROUNDING_PATH
    scope = f" [{one.scope}]" if one.scope else ""
    if one.tensor and (not one.module or one.tensor.startswith(f"{one.module}.")):
        return f"{one.tensor}{scope}"
    return f"{module_label(one.module, classes)} {one.tensor or UNNAMED}{scope}"


def _bar(group: EntryGroup, largest: int) -> Bar:
    sizes: dict[str, int] = {}
    for one in group.entries:
        sizes[one.category] = sizes.get(one.category, 0) + one.bytes
    return Bar(tuple((sizes[name] / largest, category_color(name)) for name in stack_order(tuple(sizes))))


def _beside(one: GroupedEntries, terminal: Terminal) -> list[str]:
    """Return empty groups, and entries that match later groups, too."""
    empty = [group.name for group in one.groups if not group.entries]
    lines = terminal.paragraph(f"empty: {', '.join(empty)}", indent=2) if empty else []
    if one.overlaps:
        pairs = overlap_pairs(one.overlaps)
        shown = [f"{count:,} in {first}, not {later}" for first, later, count, _ in pairs[:OVERLAPS_SHOWN]]
        more = f"; and {counted(len(pairs) - OVERLAPS_SHOWN, 'more pair')}" if len(pairs) > OVERLAPS_SHOWN else ""
        size = format_bytes(sum(overlap.entry.bytes for overlap in one.overlaps))
        count = f"{len(one.overlaps):,} {'entries match' if len(one.overlaps) > 1 else 'entry matches'}"
        text = f"overlaps: {count} several groups ({size}) and count in the first: {'; '.join(shown)}{more}"
        lines += terminal.paragraph(text, indent=2)
    return lines


def overlap_pairs(overlaps: Sequence[Overlap]) -> list[tuple[str, str, int, int]]:
    """Return (first matching group, later matching group, entries, bytes), most bytes first."""
    every = sorted((one.group, later, one.entry.bytes) for one in overlaps for later in one.also)
    pairs = []
    for (first, later), items in groupby(every, key=lambda item: item[:2]):
        sizes = [size for _, _, size in items]
        pairs.append((first, later, len(sizes), sum(sizes)))
    return sorted(pairs, key=lambda pair: (-pair[3], pair[0], pair[1]))


def group_document(groupings: Sequence[Grouping]) -> dict[str, Any]:
    """Return the JSON document of ``group``: dictionary name -> groups, with all entries.

    Of several devices, it is the one with most bytes, and ``ranks`` has all of them.
    """
    documents = [_document(grouping) for grouping in groupings]
    highest = max(range(len(documents)), key=lambda place: groupings[place].allocated_bytes)
    return documents[0] if len(documents) == 1 else {**documents[highest], "ranks": documents}


def _document(grouping: Grouping) -> dict[str, Any]:
    left = grouping.untrackable
    return {
        "schema_version": SCHEMA_VERSION,
        **place_document(grouping),
        "instant": instant_document(grouping.instant),
        "allocated_bytes": grouping.allocated_bytes,
        **{one.dictionary: [_group_document(group) for group in one.groups] for one in grouping.dictionaries},
        "untrackable_bytes": left.bytes,
        "untrackable": {
            "source": left.source,
            "lines": [asdict(line) for line in left.lines],
            "driver_bytes": left.driver_bytes,
            "with_driver_bytes": left.with_driver_bytes,
        },
        "overlaps": {one.dictionary: [_overlap_document(o) for o in one.overlaps] for one in grouping.dictionaries},
        "notes": list(grouping.notes),
    }


def _group_document(group: EntryGroup) -> dict[str, Any]:
    entries = [_entry_document(entry) for entry in group.entries]
    return {"group": group.name, "bytes": group.bytes, "blocks": group.blocks, "entries": entries}


def _entry_document(one: Entry) -> dict[str, Any]:
    return {"name": one.name, "bytes": one.bytes, "blocks": one.blocks}


def _overlap_document(overlap: Overlap) -> dict[str, Any]:
    return {
        "name": overlap.entry.name,
        "bytes": overlap.entry.bytes,
        "group": overlap.group,
        "also": list(overlap.also),
    }
