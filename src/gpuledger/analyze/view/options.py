"""Options of a view of a run. Imports nothing, so that the command line can list the choices quickly."""

from __future__ import annotations

from dataclasses import dataclass

GROUPINGS = {
    "category": ("category", "module"),
    "module": ("category", "module"),
    "phase": ("category", "module", "phase"),
    "scope": ("category", "module", "scope"),
    "tensor": ("category", "module", "tensor", "line"),
    "line": ("category", "line"),
    "function": ("category", "function"),
    "operator": ("category", "module"),
    "kernel": ("category", "module"),
    "fusion": ("category", "module"),
}
"""Rows of a table -> how its bytes are broken down."""

TIMELINE_POINTS = 4_000


@dataclass(frozen=True)
class ViewOptions:
    """The instant to show, and the rows of a table.

    ``at`` and ``step`` are those of :func:`~gpuledger.analyze.memory.instant.resolve_instant`. ``group_by`` is one of
    :data:`GROUPINGS`, None if no single table was requested; ``depth``, ``sort`` and ``fold`` are those of
    :func:`~gpuledger.analyze.step.side_by_side.lines_by`. A timeline has at most ``timeline_points``.
    ``fit_bytes`` is the GPU memory that findings are compared with. ``gpus`` are names and usable bytes of GPUs, of
    which one is named after an out-of-memory error.
    """

    at: str = "peak"
    step: int | None = None
    group_by: str | None = None
    depth: int | None = None
    sort: str | None = None
    fold: bool = False
    timeline_points: int = TIMELINE_POINTS
    fit_bytes: int | None = None
    gpus: tuple[tuple[str, int], ...] = ()

    @property
    def account_words(self) -> tuple[str, ...]:
        """Return how the bytes are broken down."""
        return GROUPINGS[self.group_by or "category"]
