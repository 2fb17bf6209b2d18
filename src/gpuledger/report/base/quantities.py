"""Values and changes of any unit as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuledger.analyze.compare.metrics import KINDS
from gpuledger.report.base.terminal import MISSING
from gpuledger.units import format_bytes, format_frac, format_joules, format_ns, share_frac

if TYPE_CHECKING:
    from gpuledger.analyze.compare.changes import Change

_FORMATS: dict[str, Callable[[float | None], str]] = {
    "B": format_bytes,
    "ns": format_ns,
    "J": format_joules,
    "1": format_frac,
}
LESS_COLOR, MORE_COLOR = "#4e79a7", "#f28e2b"
"""Blue for decreases, orange for increases; colour-blind readers can distinguish them."""
MANY = 10
"""Changes by at least this factor are shown as a factor, ``×39``, and smaller ones in percent."""


def quantity(value: float | None, unit: str) -> str:
    """Return a value of ``unit`` (B, ns, J or 1) as text; a dash if unknown."""
    return MISSING if value is None else _FORMATS[unit](value)


def exactly(value: float, unit: str) -> str:
    """Return a value as text in full precision: bytes with their exact number."""
    return f"{quantity(value, unit)} ({value:,.0f} B)" if unit == "B" and abs(value) >= 1024 else quantity(value, unit)


def signed(delta: float | None, unit: str) -> str:
    """Return a change as text with its sign, ``+1.2 GiB``; a dash if unknown."""
    return f"+{quantity(delta, unit)}" if delta is not None and delta > 0 else quantity(delta, unit)


def signed_share(delta: float | None, whole: float | None) -> str:
    """Return a change as a share of the first value, ``+12.5 %``; ``new`` if the first value is 0.

    Changes by a factor of ten or more are shown as the factor: ``×39``.
    """
    if delta is not None and whole == 0:
        return "new"
    fraction = share_frac(delta, whole)
    if fraction is None:
        return MISSING
    if 0 < abs(fraction) < 0.0005:
        return "< +0.1 %" if fraction > 0 else "> -0.1 %"
    if fraction >= MANY - 1:
        return f"×{fraction + 1:,.0f}"
    return f"{'+' if fraction > 0 else ''}{format_frac(fraction)}"


def metric_title(name: str) -> str:
    """Return the label of a metric."""
    return KINDS[name].title


def metric_unit(name: str) -> str:
    """Return the unit of a metric: B, ns, J or 1."""
    return KINDS[name].unit


def remark(change: Change) -> str:
    """Return a note on a change: that one run does not have the value, or the noise of the runs."""
    if change.delta is None:
        return "only after" if change.before is None else "only before"
    if change.within_noise:
        return "within noise"
    return "" if change.noise_known else "noise unknown"
