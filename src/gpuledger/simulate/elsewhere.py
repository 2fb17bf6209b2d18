"""Requests that other GPUs would get from the same program: recorded while it is followed on one of them."""

from __future__ import annotations

from typing import Any

from gpuledger.simulate.traits import Size, Traits, listed_traits

REPLACE, ADD, REMOVE = 0, 1, 2
"""Kinds of changes: another size of a request, a request of other GPUs only, and the free of such a request."""


class Elsewhere:
    """Changes to a program's requests on other GPUs, in the order of the requests.

    Each change is ``[position, kind, number, sizes, stream, operator]``: the index of the request at or before which it
    belongs, one of the kinds, the number of an added request, the index of its sizes, and its stream and operator.
    """

    def __init__(self) -> None:
        self.changes: list[list[int]] = []
        self.approximate: set[Traits] = set()
        """Traits of the GPUs for which the program's operators were not all followed."""
        self._sizes: dict[tuple[int, ...], int] = {}
        self._added = 0

    def replace(self, position: int, size: Size) -> None:
        """Record that the request at ``position`` has other sizes on other GPUs."""
        self.changes.append([position, REPLACE, -1, self._number(size), -1, -1])

    def add(self, position: int, size: Size, stream: int, operator: int) -> int:
        """Record a request before ``position`` that only other GPUs make. Returns its number."""
        self._added += 1
        self.changes.append([position, ADD, self._added, self._number(size), stream, operator])
        return self._added

    def remove(self, position: int, number: int) -> None:
        """Record that an added request is freed before ``position``."""
        self.changes.append([position, REMOVE, number, -1, -1, -1])

    def fact(self) -> dict[str, Any]:
        """Return everything as one fact of a journal."""
        traits = [[one.multiprocessors, *one.compute_capability] for one in listed_traits()]
        approximate = [one in self.approximate for one in listed_traits()]
        return {"traits": traits, "sizes": list(self._sizes), "changes": self.changes, "approximate": approximate}

    def _number(self, size: Size) -> int:
        return self._sizes.setdefault(size.elsewhere_bytes, len(self._sizes))
