"""Memory without a name, as text and as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.memory.unknown import BEFORE
from gpuledger.model.schema.tables import SCHEMA_VERSION
from gpuledger.report.base.phrases import allocated_text, device_text, entry, instant_title, percent, share
from gpuledger.report.base.terminal import BOLD, DIM, Terminal
from gpuledger.report.json.document import instant_document
from gpuledger.units import counted, format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.memory.lines.source_lines import Frame
    from gpuledger.analyze.memory.unknown import Unknown, Unknowns

FRAMES = 6
INDENT = 10


def unknown_lines(
    unknowns: Unknowns,
    rows: int,
    terminal: Terminal,
    classes: Mapping[str, str] | None = None,
    rank: int | None = None,
) -> list[str]:
    """Return the sum of memory without a name, then a paragraph per entry, largest first, with stack and advice.

    ``rank`` is None if the program has one process.
    """
    total, instant = unknowns.allocated_bytes, unknowns.instant
    share_text = f"{format_bytes(unknowns.bytes)} of it ({percent(unknowns.bytes, total)})"
    count = f"{unknowns.blocks:,} block{'' if unknowns.blocks == 1 else 's'}"
    said = f"{share_text} in {count} without a name" if unknowns.blocks else "all of it has a name"
    size = allocated_text(total, instant, device_text(instant.device_idx, "", rank), classes)
    lines = entry(terminal, instant_title(instant), size, said)
    for item in unknowns.items[:rows]:
        lines += ["", *_item_lines(item, total, terminal)]
    rest = unknowns.items[rows:]
    if rest:
        size = format_bytes(sum(item.bytes for item in rest))
        lines += ["", terminal.styled(terminal.text(f"… {len(rest):,} more, {size}"), DIM)]
    return lines


def unknown_document(places: Sequence[tuple[int, Unknowns]]) -> dict[str, Any]:
    """Return the JSON document of ``show --unknown``. Of several devices: the one with most bytes, and ``ranks``."""
    documents = [_document(rank, unknowns) for rank, unknowns in places]
    highest = max(documents, key=lambda document: int(document["unknown_bytes"]))
    return documents[0] if len(documents) == 1 else {**highest, "ranks": documents}


def _place(frame: Frame) -> str:
    return short_path(frame.file) + ("" if frame.line is None else f":{frame.line}")


def _item_lines(item: Unknown, total: int, terminal: Terminal) -> list[str]:
    blocks = counted(item.blocks, "block")
    where = " · ".join(part for part in (item.category, item.phase, _when(item.step)) if part)
    head = [format_bytes(item.bytes).rjust(INDENT - 1), share(item.bytes, total), blocks, where, item.tag]
    size, *others = [terminal.text(part) for part in head if part]
    lines = terminal.wrapped([terminal.styled(size, BOLD), *others], INDENT)
    shown, hidden = _shown_frames(item.stack)
    for frame in shown:
        text = f"{' ' * INDENT}{terminal.text(f'{_place(frame)}  {frame.function}')}"
        lines.append(text if frame.own else terminal.styled(text, DIM))
    if hidden:
        lines.append(terminal.styled(" " * INDENT + terminal.text(f"… {counted(hidden, 'more frame')}"), DIM))
    return lines + terminal.paragraph(item.advice, " " * INDENT + terminal.text("→ "), INDENT + 2)


def _shown_frames(stack: tuple[Frame, ...]) -> tuple[list[Frame], int]:
    """Return the frames to show, preferring those of the program, and the number of omitted ones."""
    chosen = set(sorted(range(len(stack)), key=lambda place: (not stack[place].own, place))[:FRAMES])
    return [frame for place, frame in enumerate(stack) if place in chosen], len(stack) - len(chosen)


def short_path(file: str) -> str:
    """Return a file's path relative to the working directory or to its package directory."""
    for mark in ("site-packages", "dist-packages"):
        _, found, inside = file.rpartition(f"{os.sep}{mark}{os.sep}")
        if found:
            return inside
    here = os.getcwd() + os.sep
    return file.removeprefix(here)


def _when(step: int) -> str:
    if step == BEFORE:
        return "alive before the recording"
    return f"step {step}" if step else ""


def _document(rank: int, unknowns: Unknowns) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "rank": rank,
        "device_idx": unknowns.instant.device_idx,
        "instant": instant_document(unknowns.instant),
        "allocated_bytes": unknowns.allocated_bytes,
        "unknown_bytes": unknowns.bytes,
        "unknown_blocks": unknowns.blocks,
        "unknown": [_item_document(item) for item in unknowns.items],
    }


def _item_document(item: Unknown) -> dict[str, Any]:
    """Return one item; a missing step, tag or stack is null."""
    fields = asdict(item)
    return {
        **fields,
        "step": None if item.step == BEFORE else item.step,
        "tag": item.tag or None,
        "stack": fields["stack"] or None,
    }
