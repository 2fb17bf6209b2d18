"""Figures: matplotlib, loaded when one is drawn, and texts that its font can show."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from gpuledger.errors import UsageError
from gpuledger.report.base.terminal import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, SOFT, FAINT = "#1f2328", "#59636e", "#d1d9e0"
"""The colours of texts, of what is said beside them, and of lines."""


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure that needs no display.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("plot: matplotlib is not installed", hint="pip install 'gpuledger[plot]'") from error
    figure = Figure(figsize=(width_in, height_in), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def drawable(text: str) -> str:
    r"""Return ``text`` with what the font has no shape for escaped, as ``\U0001f525``, and controls too."""
    known = _characters()
    return "".join(
        one if ord(one) in known else one.encode("unicode_escape").decode("ascii") for one in printable(text)
    )


def shortened(text: str, characters: int) -> str:
    """Return ``text`` cut in its middle to at most ``characters``."""
    if len(text) <= characters:
        return text
    head = (characters - 1) // 3
    return f"{text[:head]}…{text[len(text) - (characters - 1 - head) :]}"


@functools.cache
def _characters() -> frozenset[int]:
    from matplotlib import font_manager, ft2font

    font: Any = ft2font.FT2Font(font_manager.findfont("DejaVu Sans"))
    return frozenset(font.get_charmap())
