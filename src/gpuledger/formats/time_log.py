"""Logs of times per layer: ``ALGO, BATCH, TIME_TYPE, ms, ms, …``, one time per layer, one line per repetition."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError
from gpuledger.formats.text_lines import TextLine, decoded, read_lines, shown
from gpuledger.model.imported import ImportedRank, ImportedRun, rows_to_table

MAX_UNREAD = 100
MAX_ALGORITHMS = 64
"""Each algorithm is a rank with its own tables; logs have a handful."""
MAX_BATCH = 1 << 31
MAX_MS = 1e9
_LINE = re.compile(r"\s*[A-Za-z][\w .+-]*,\s*[0-9]+\s*,\s*[A-Z][A-Z_]*\s*(,\s*[0-9][0-9.eE+-]*\s*)+", re.ASCII)


@dataclass(frozen=True)
class _Row:
    """One line: the time of every layer in ms."""

    algorithm: str
    batch: int
    time_type: str
    layers_ms: tuple[float, ...]


def looks_like(path: Path, head: bytes) -> bool:
    """Return whether the first line with content has this form."""
    first = next((line for line in decoded(head).splitlines() if line.strip()), "")
    return _LINE.fullmatch(first) is not None


def read_files(paths: tuple[Path, ...], name: str, options: dict[str, Any]) -> ImportedRun:
    """Return the times of the files, one rank per algorithm. There are no options.

    Each repetition at one batch size is a step. The times of its layers are consecutive spans, because the log has no
    start times, and spans need them.

    Raises:
        InputError: no line could be read.
    """
    rows: list[_Row] = []
    unread: list[str] = []
    for path in paths:
        _read_rows(path, rows, unread)
    if not rows:
        raise InputError(unread[0] if unread else f"{paths[0]}: the file is empty")
    by_algorithm: dict[str, list[_Row]] = {}
    for row in rows:
        by_algorithm.setdefault(row.algorithm, []).append(row)
    if len(by_algorithm) > MAX_ALGORITHMS:
        raise InputError(
            f"{paths[0]}: {len(by_algorithm):,} algorithms, the limit is {MAX_ALGORITHMS}",
            hint="Import fewer files at once: each algorithm becomes a rank of the run",
        )
    ranks = tuple(_rank(number, *group) for number, group in enumerate(by_algorithm.items()))
    return ImportedRun(name, "time-log", tuple(str(path) for path in paths), ranks, unread=tuple(unread))


def _read_rows(path: Path, rows: list[_Row], unread: list[str]) -> None:
    layers, count = 0, 0
    for line in read_lines(path):
        if not line.text.strip():
            continue
        try:
            row = _parse(line, layers)
        except ValueError as error:
            count += 1
            if count <= MAX_UNREAD:
                unread.append(f"{path}: line {line.number}: {shown(line.text)}: {error}")
            continue
        layers = len(row.layers_ms)
        rows.append(row)
    if count > MAX_UNREAD:
        unread.append(f"{path}: … and {count - MAX_UNREAD:,} more lines")


def _parse(line: TextLine, layers: int) -> _Row:
    """Return a line's row. ``layers`` is the number of times in the lines before; 0 for the first.

    Raises:
        ValueError: it has another form; the message has the reason.
    """
    if not line.ended:
        raise ValueError("cut off, so its last time may be incomplete")
    cells = [cell.strip() for cell in line.text.rstrip(", \t").split(",")]
    if len(cells) < 4:
        raise ValueError("expected ALGO, BATCH, TIME_TYPE, ms…")
    if not cells[1].isdecimal() or not 0 < int(cells[1]) < MAX_BATCH:
        raise ValueError(f"batch {cells[1]!r} is not a whole number above 0")
    times = tuple(float(cell) for cell in cells[3:])
    if not all(math.isfinite(ms) and 0 <= ms < MAX_MS for ms in times):
        raise ValueError("a time is negative or not a number")
    if layers and len(times) != layers:
        raise ValueError(f"{len(times)} layers, but earlier lines have {layers}")
    return _Row(cells[0], int(cells[1]), cells[2], times)


def _rank(number: int, algorithm: str, rows: list[_Row]) -> ImportedRank:
    steps = _steps(rows)
    names = list(dict.fromkeys(row.time_type for step in steps for row in step))
    layers = max(len(row.layers_ms) for step in steps for row in step)
    modules = [
        {"module_id": n, "path": f"layer {n + 1}", "class_name": "layer", "root_id": n, "depth": 0, "compiled": False}
        for n in range(layers)
    ]
    tables = {
        "spans": rows_to_table("spans", list(_spans(steps, names))),
        "names": rows_to_table("names", [{"name_id": n, "name": name} for n, name in enumerate(names)]),
        "modules": rows_to_table("modules", modules),
    }
    facts = {"algorithm": algorithm, "step_batches": [step[0].batch for step in steps]}
    return ImportedRank(
        number, tables, facts, ("The log has durations but no start times, so they are placed one after the other.",)
    )


def _steps(rows: list[_Row]) -> list[list[_Row]]:
    """Return the lines of each repetition at each batch size: the n-th lines of all types are one repetition."""
    seen: dict[tuple[int, str], int] = {}
    steps: dict[tuple[int, int], list[_Row]] = {}
    for row in rows:
        repetition = seen[row.batch, row.time_type] = seen.get((row.batch, row.time_type), 0) + 1
        steps.setdefault((row.batch, repetition), []).append(row)
    return list(steps.values())


def _spans(steps: list[list[_Row]], names: list[str]) -> Iterator[dict[str, Any]]:
    name_ids = {name: number for number, name in enumerate(names)}
    begun_ns = 0
    for number, step in enumerate(steps, 1):
        ended_ns = begun_ns
        for row in step:
            start_ns = begun_ns
            for layer, ms in enumerate(row.layers_ms):
                end_ns = start_ns + round(ms * 1e6)
                yield {
                    "device_idx": 0,
                    "kind": "host",
                    "name_id": name_ids[row.time_type],
                    "start_ns": start_ns,
                    "end_ns": end_ns,
                    "module_id": layer,
                    "phase": "forward",
                    "step": number,
                }
                start_ns = end_ns
            ended_ns = max(ended_ns, start_ns)
        begun_ns = ended_ns
