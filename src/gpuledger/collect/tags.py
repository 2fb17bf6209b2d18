"""Tags: small numbers that stand for (step, phase, module, …), carried by every allocation."""

from __future__ import annotations

from gpuledger.model.accounts import Phase
from gpuledger.model.journal import Part


class TagBook:
    """Gives out tag numbers and remembers what each stands for until it is written down."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, int, int, int, int]] = []
        self._next = 0

    def make(
        self,
        step: int,
        phase: Phase,
        visit: int,
        module_id: int = -1,
        *,
        scope_id: int = -1,
        stack_id: int = -1,
        flags: int = 0,
    ) -> int:
        """Return a new tag number."""
        tag_id = self._next
        self._next += 1
        self._rows.append((tag_id, step, int(phase), visit, module_id, scope_id, stack_id, flags))
        return tag_id

    def drain(self, part: Part) -> None:
        """Move the tags made since the last drain into ``part``."""
        rows, self._rows = self._rows, []
        if rows:
            columns = zip(*rows, strict=True)
            names = ("tag_id", "step", "phase", "visit", "module_id", "scope_id", "stack_id", "flags")
            part.add("tags", **dict(zip(names, columns, strict=True)))
