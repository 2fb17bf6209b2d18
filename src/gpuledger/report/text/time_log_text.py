"""A time log as text, JSON and CSV: the time of all layers by algorithm, type and batch size."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.step.layer_shapes import known_shapes
from gpuledger.model.schema.tables import SCHEMA_VERSION
from gpuledger.report.base.phrases import entry
from gpuledger.report.base.terminal import BOLD, MISSING, Cell, Terminal, TextColumn, TextTable
from gpuledger.units import share_frac

if TYPE_CHECKING:
    from gpuledger.analyze.step.time_logs import TimeLog

COLUMNS = ("name", "algorithm", "type", "batch", "total_s", "total_low_s", "total_high_s", "repeats", "ratio_to_first")


def time_log_lines(logs: Sequence[TimeLog], terminal: Terminal) -> list[str]:
    """Return a head and a table for each log: times of all layers in ms, with ratios to each type's first algorithm."""
    lines: list[str] = []
    for log in logs:
        layers, most = log.layer_s.shape[3], int(log.repeats.max())
        network, _ = known_shapes(log)
        parts = [log.name, network, f"{layers} layers", f"mean of {most} repetitions" if most > 1 else "one repetition"]
        head = entry(terminal, "Times of layers", ", ".join(part for part in parts if part))
        lines += ["", *head, "", *_table(log).lines(terminal)]
    return lines[1:]


def _table(log: TimeLog) -> TextTable:
    batches = [TextColumn(f"batch {batch}, ms", right=True) for batch in log.batches]
    columns = (
        TextColumn("", shrinks=True),
        *(column for batch in batches for column in (batch, TextColumn("", right=True))),
    )
    body: list[tuple[str | Cell, ...]] = []
    for kind, word in enumerate(log.types):
        body.append((Cell(word, BOLD), *[""] * (2 * len(batches))))
        for number, algorithm in enumerate(log.algorithms):
            cells: list[str | Cell] = [f"  {algorithm}"]
            for batch in range(len(log.batches)):
                times = _times_first(log, number, batch, kind)
                cells += [_span(log, (number, batch, kind)), "" if times is None or not number else f"×{times:.3g}"]
            body.append(tuple(cells))
    return TextTable(columns, tuple(body))


def _span(log: TimeLog, place: tuple[int, int, int]) -> str:
    """Return the mean in ms, and half the difference of the slowest and the fastest repetition."""
    mean = _known(log.total_s[place])
    if mean is None:
        return MISSING
    low, high = float(log.total_low_s[place]), float(log.total_high_s[place])
    return f"{mean * 1e3:,.4g}" + (f" ± {_short((high - low) * 500)}" if high > low else "")


def _short(value_ms: float) -> str:
    return f"{value_ms:,.0f}" if value_ms >= 100 else f"{value_ms:.2g}"


def _times_first(log: TimeLog, number: int, batch: int, kind: int) -> float | None:
    first = _known(log.total_s[0, batch, kind])
    return share_frac(_known(log.total_s[number, batch, kind]), first)


def _known(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def time_log_rows(logs: Sequence[TimeLog]) -> Iterator[dict[str, Any]]:
    """Yield a row for each algorithm, type and batch size of each log: all layers' time in s, or None."""
    for log in logs:
        for number, algorithm in enumerate(log.algorithms):
            for kind, word in enumerate(log.types):
                for batch, size in enumerate(log.batches):
                    place = number, batch, kind
                    values = (log.total_s, log.total_low_s, log.total_high_s)
                    known = [_known(one[place]) for one in values]
                    times = _times_first(log, *place)
                    repeats = int(log.repeats[place]) or None
                    yield dict(zip(COLUMNS, (log.name, algorithm, word, size, *known, repeats, times), strict=True))


def time_log_csv(logs: Sequence[TimeLog]) -> str:
    """Return the rows as CSV, with an empty cell if a time was not measured."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(["" if value is None else value for value in row.values()] for row in time_log_rows(logs))
    return stream.getvalue()


def time_log_markdown(logs: Sequence[TimeLog]) -> str:
    """Return the rows as a table in Markdown, in milliseconds."""
    lines = ["| run | algorithm | type | batch | ms | against the first |", "| --- | --- | --- | ---: | ---: | ---: |"]
    for row in time_log_rows(logs):
        size = MISSING if row["total_s"] is None else f"{row['total_s'] * 1e3:,.4g}"
        times = MISSING if row["ratio_to_first"] is None else f"×{row['ratio_to_first']:.3g}"
        words = [text.replace("|", "\\|") for text in (row["name"], row["algorithm"], row["type"])]
        lines.append(f"| {' | '.join([*words, str(row['batch']), size, times])} |")
    return "\n".join(lines) + "\n"


def time_log_document(log: TimeLog) -> dict[str, Any]:
    """Return the JSON document of ``show``: sums, and each layer's time in s, None if not measured."""
    network, shapes = known_shapes(log)
    layers = [
        {
            "algorithm": algorithm,
            "type": word,
            "batch": size,
            "layer_s": [_known(value) for value in log.layer_s[number, batch, kind]],
            "layer_low_s": [_known(value) for value in log.layer_low_s[number, batch, kind]],
            "layer_high_s": [_known(value) for value in log.layer_high_s[number, batch, kind]],
        }
        for number, algorithm in enumerate(log.algorithms)
        for kind, word in enumerate(log.types)
        for batch, size in enumerate(log.batches)
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "name": log.name,
        "recorder": "time-log",
        "network": network or None,
        "shapes": [{"channels": one.channels, "filters": one.filters, "kernel": one.kernel} for one in shapes] or None,
        "totals": list(time_log_rows([log])),
        "layers": layers,
    }
