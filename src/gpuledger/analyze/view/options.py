"""What a view of a run is asked for. Imports nothing, so that a command line can list the choices."""

from __future__ import annotations

from dataclasses import dataclass

GROUPINGS = {
    "category": ("category", "module"),
    "module": ("category", "module"),
    "phase": ("category", "module", "phase"),
    "scope": ("category", "module", "scope"),
    "tensor": ("category", "module", "tensor"),
    "operator": ("category", "module"),
    "kernel": ("category", "module"),
}
"""What the rows of a table may stand for -> what the accounts of its bytes are told apart by."""

TIMELINE_POINTS = 4_000


@dataclass(frozen=True)
class ViewOptions:
    """Which instant is looked at, and what the rows of a table are.

    ``at`` and ``step`` are those of :func:`~gpuledger.analyze.memory.instant.resolve_instant`. ``group_by`` is one of
    :data:`GROUPINGS`, None where no single table was asked for; ``depth``, ``sort`` and ``fold`` are those of
    :func:`~gpuledger.analyze.step.side_by_side.lines_by`. A timeline has at most ``timeline_points``.
    """

    at: str = "peak"
    step: int | None = None
    group_by: str | None = None
    depth: int | None = None
    sort: str | None = None
    fold: bool = False
    timeline_points: int = TIMELINE_POINTS

    @property
    def account_words(self) -> tuple[str, ...]:
        """Return what the accounts of bytes are told apart by."""
        return GROUPINGS[self.group_by or "category"]
