"""One finding: what would lower the peak."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One finding. ``command`` are the arguments of ``gpuledger`` that show it, with ``RUN`` for the run.

    ``action`` is the advice in a few words. ``saving_bytes`` is an estimate relative to ``saved_from``, and an upper
    bound if ``is_upper_bound``. ``is_replayed`` is False if the saving is not from a replay of this run's peak.
    ``peak_after_bytes`` is what the peak would then be, at least if the saving is an upper bound; None if not replayed.
    ``grows`` says that the saving grows with each step. ``search`` is the search text for the report.
    """

    title: str
    evidence: str
    action: str
    advice: str
    saving_bytes: int
    saved_from: str
    command: tuple[str, ...]
    search: str
    is_upper_bound: bool = False
    is_replayed: bool = True
    grows: bool = False
    peak_after_bytes: int | None = None
