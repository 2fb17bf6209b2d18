"""Say which steps are in an estimate if they differ, and what later ones can need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuledger.model.journal.reading import read_journal
from gpuledger.units import format_bytes


def grown_bytes_of(outcome: dict[str, Any], directory: Path) -> int:
    """Return the growth of reserved memory after the third step, if later steps that can be larger are missing.

    Calls of a loop that each kept more, such as those of a generation, have had the largest of them when it ended.
    """
    if not _lacks_larger(outcome):
        return 0
    counters = read_journal(directory / "rank-0" / "journal").tables["counters"]
    return grown_after(counters["step"].tolist(), counters["peak_reserved_bytes"].tolist(), _settled_step(outcome))


def grown_after(steps: Sequence[int], peak_bytes: Sequence[int], first_step: int = 3) -> int:
    """Return how much a peak has grown since the end of a step; 0 if there was none.

    Args:
        steps: The step of each reading, in order. Readings of a step after its end have the same number.
        peak_bytes: The peak of the program at each reading.
        first_step: The step. Until then, any program grows: the states of its optimizer are new.
    """
    after = [peak for step, peak in zip(steps, peak_bytes, strict=True) if step >= first_step]
    return max(after) - after[0] if after else 0


def _settled_step(outcome: dict[str, Any]) -> int:
    return max(outcome.get("settled_step") or 0, 3)


def _lacks_larger(outcome: dict[str, Any]) -> bool:
    """Return whether steps differ, not all of them were simulated, and others can be larger."""
    lacks_steps = outcome["ended"] == "steps" or outcome["shortened"]
    return bool(outcome["varied"] and lacks_steps and not outcome.get("has_largest"))


def describe_batches(outcome: dict[str, Any]) -> str:
    """Return which batches of a data loader are in the steps, if these are not only the next ones."""
    largest = outcome.get("largest_of")
    if largest:
        return f", with the largest {largest[0]} of the next {largest[1]} batches of the DataLoader"
    return ", with the largest batch of the DataLoader" if outcome.get("has_largest") else ""


def describe_later(outcome: dict[str, Any], grown_bytes: int, later_bytes: int) -> str:
    """Return what is missing of later steps, if these can be larger."""
    said = " Larger steps after these are not included." if _lacks_larger(outcome) else ""
    if not later_bytes:
        return said
    grown, later = format_bytes(grown_bytes), format_bytes(later_bytes)
    since = f"after step {_settled_step(outcome)}"
    return f"{said} Reserved memory grew by {grown} {since}, so the upper bound has {later} for later steps."
