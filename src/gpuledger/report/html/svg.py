"""A timeline as an SVG picture: stacked categories, the reserved line, and the peak. Without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuledger.report.base.colors import category_color, stack_order
from gpuledger.report.base.markup import element, html_text
from gpuledger.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuledger.analyze.memory.timeline import Timeline

WIDTH, HEIGHT = 640, 180
_LEFT, _TOP, _BOTTOM = 64, 14, 20


def timeline_svg(timeline: Timeline) -> str:
    """Return the allocated bytes by category over time as an SVG element."""
    t_ns = timeline.t_ns - timeline.t_ns[0]
    highest = max(int(timeline.reserved_bytes.max()), int(timeline.bytes.sum(axis=0).max()), 1)
    x = _LEFT + t_ns / max(int(t_ns[-1]), 1) * (WIDTH - _LEFT)
    total = np.zeros(t_ns.size)
    shapes = []
    for name in stack_order(timeline.categories):
        below, total = total, total + timeline.bytes[timeline.categories.index(name)]
        points = [*_stairs(x, _y(total, highest)), *reversed(_stairs(x, _y(below, highest)))]
        title = element("title", html_text(name))
        shapes.append(element("polygon", title, points=" ".join(points), fill=category_color(name)))
    reserved = " ".join(_stairs(x, _y(timeline.reserved_bytes.astype(float), highest)))
    line = {"fill": "none", "stroke": "currentColor", "stroke_width": "1", "opacity": "0.6"}
    shapes.append(element("polyline", element("title", "reserved"), points=reserved, **line))
    peak = int(np.argmax(total))
    mark = f"M {x[peak]:.1f} {_TOP} V {HEIGHT - _BOTTOM}"
    shapes.append(element("path", element("title", "peak"), d=mark, stroke="currentColor", stroke_dasharray="3 3"))
    last = format_ns(int(t_ns[-1])) if timeline.has_times else counted(int(t_ns[-1]), "event")
    texts = (
        _text(_LEFT - 4, _TOP + 4, format_bytes(highest), "end"),
        _text(_LEFT - 4, HEIGHT - _BOTTOM, "0", "end"),
        _text(_LEFT, HEIGHT - 4, "0 s" if timeline.has_times else "0", "start"),
        _text(WIDTH, HEIGHT - 4, last, "end"),
        _text(min(max(x[peak], _LEFT + 50), WIDTH - 50), _TOP - 4, f"peak {format_bytes(total[peak])}", "middle"),
    )
    label = "allocated bytes by category over time"
    return element(
        "svg", *shapes, *texts, viewBox=f"0 0 {WIDTH} {HEIGHT}", width=str(WIDTH), role="img", aria_label=label
    )


def _y(values: NDArray[np.float64], highest: int) -> NDArray[np.float64]:
    return HEIGHT - _BOTTOM - values / highest * (HEIGHT - _BOTTOM - _TOP)


def _stairs(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[str]:
    """Return the corners of a step line, which is constant between events."""
    corners = [f"{x[0]:.1f},{y[0]:.1f}"]
    for place in range(1, x.size):
        corners += [f"{x[place]:.1f},{y[place - 1]:.1f}", f"{x[place]:.1f},{y[place]:.1f}"]
    return corners


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return element("text", text, x=f"{x:.0f}", y=f"{y:.0f}", text_anchor=anchor, font_size="11", fill="currentColor")
