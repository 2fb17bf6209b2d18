"""A time log as one HTML file: the time of all layers, and of each layer, by algorithm and batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.step.layer_shapes import known_shapes
from gpuledger.report.base.markup import element, html_text
from gpuledger.report.base.terminal import MISSING
from gpuledger.report.html.static_page import static_page

if TYPE_CHECKING:
    from gpuledger.analyze.step.time_logs import F64, TimeLog


def render_time_log(log: TimeLog, notes: Sequence[str]) -> str:
    """Return a time log as the text of one HTML file."""
    network, shapes = known_shapes(log)
    most = int(log.repeats.max())
    about = f"Milliseconds, mean of {most} repetitions." if most > 1 else "Milliseconds of one repetition."
    parts = [element("h1", html_text(log.name)), element("p", html_text(f"{about} – was not measured."))]
    for kind, word in enumerate(log.types):
        parts += [element("h2", html_text(f"{word}: all layers")), _totals(log, kind)]
    words = [f"{one.channels_text} {one.kernel_text}" for one in shapes]
    for kind, word in enumerate(log.types):
        for batch, size in enumerate(log.batches):
            head = f"{word}: each layer at batch {size}" + (f", {network}" if network else "")
            parts += [element("h2", html_text(head)), _layers(log.layer_s[:, batch, kind], log.algorithms, words)]
    parts += [element("h2", "Notes"), element("ul", *(element("li", html_text(note)) for note in notes))]
    return static_page(log.name, *parts)


def _totals(log: TimeLog, kind: int) -> str:
    head = ["algorithm", *(f"batch {batch}" for batch in log.batches)]
    rows = [
        [algorithm, *(_ms(value) for value in log.total_s[number, :, kind])]
        for number, algorithm in enumerate(log.algorithms)
    ]
    return _table(head, rows)


def _layers(layer_s: F64, algorithms: Sequence[str], shapes: Sequence[str]) -> str:
    rows = [
        [str(layer + 1), *([shapes[layer]] if shapes else []), *(_ms(value) for value in layer_s[:, layer])]
        for layer in range(layer_s.shape[1])
    ]
    return _table(["layer", *(["shape"] if shapes else []), *algorithms], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = element("tr", *(element("th", html_text(word)) for word in head))
    body = [element("tr", *(element("td", html_text(cell)) for cell in row)) for row in rows]
    return element("table", element("thead", titles), element("tbody", *body))


def _ms(value_s: float) -> str:
    return MISSING if np.isnan(value_s) else f"{value_s * 1e3:,.4g}"
