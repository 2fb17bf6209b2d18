"""What every memory recorder offers to the session that drives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.tensor_observations import Place
from gpuledger.model.journal.journal import Part


class Recorder(Protocol):
    """Records allocations of one process between ``open`` and ``close``.

    Attributes:
        kind: ``cuda-history`` or ``dispatch``; kept in the run and shown to the user.
        set_token: puts a tag on the calling thread's next allocations. The cheapest callable there is:
            it is called at every module's entry and exit.
    """

    kind: str
    set_token: Callable[[str], None]

    def open(self, part: Part, living: LiveObjects) -> None:
        """Start recording; write the opening snapshot of what is already alive into ``part``."""

    def set_stacks(self, on: bool) -> None:
        """Keep Python stacks with the allocations from now on, or stop doing so."""

    def counts(self) -> dict[int, tuple[int, int]]:
        """Return ``device_idx -> (allocations, frees requested)`` since the process started."""

    def place_of(self, tensor: Any) -> Place | None:
        """Return where a tensor's storage is; None where it has none, or none that is recorded."""

    def read_counters(self, part: Part, step: int, reason: str, t_ns: int) -> None:
        """Append the allocator's counters of every device in use to ``part``."""

    def drain(self, part: Part, reason: str) -> None:
        """Move every event since the last drain into ``part``; ``step_end`` says that this happens after every step."""

    def close(self, part: Part, reason: str) -> bool:
        """Drain, write the closing snapshot and leave nothing installed. Safe to call twice.

        Returns:
            False where something has to stay for now: then call it again later.
        """
