"""A followed program's requests, changed to those that it would make on other GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger.model.journal.journal import Action
from gpuledger.simulate.elsewhere import ADD, REPLACE
from gpuledger.simulate.traits import Traits

Row = tuple[int, int, int, int, int]
"""Action, address, bytes, stream and operator number."""


@dataclass(frozen=True)
class RequestsElsewhere:
    """Changes to the requests on each of some GPUs, as :meth:`.Elsewhere.fact` has them."""

    traits: tuple[Traits, ...] = ()
    sizes: Sequence[Sequence[int]] = ()
    changes: Sequence[Sequence[int]] = ()
    approximate: frozenset[Traits] = field(default_factory=frozenset)

    @classmethod
    def of(cls, fact: Mapping[str, Any] | None) -> RequestsElsewhere:
        """Return the changes in a journal's fact; none without one."""
        if fact is None:
            return cls()
        traits = tuple(Traits(count, (major, minor)) for count, major, minor in fact["traits"])
        approximate = frozenset(one for one, is_so in zip(traits, fact["approximate"], strict=True) if is_so)
        return cls(traits, fact["sizes"], fact["changes"], approximate)

    def sizes_on(self, traits: Traits) -> tuple[int, ...]:
        """Return the bytes of all changed requests on a GPU; none if it is not known."""
        if traits not in self.traits:
            return ()
        place = self.traits.index(traits)
        return tuple(each[place] for each in self.sizes)

    def rows_on(self, rows: list[Row], sizes: Sequence[int]) -> list[Row]:
        """Return a program's requests with ``sizes``. Those of 0 bytes are left out, as are their frees."""
        if not sizes:
            return rows
        before: dict[int, list[Row]] = defaultdict(list)
        size_at: dict[int, int] = {}
        added: set[int] = set()
        for position, kind, number, place, stream, operator in self.changes:
            if kind == REPLACE:
                size_at[position] = sizes[place]
            elif kind == ADD and sizes[place]:
                added.add(number)
                before[position].append((int(Action.ALLOC), -number, sizes[place], stream, operator))
            elif number in added:
                before[position].append((int(Action.FREE_REQUESTED), -number, 0, -1, -1))
        found: list[Row] = []
        absent: set[int] = set()
        for position, row in enumerate(rows):
            found += before.pop(position, ())
            address = row[1]
            if position in size_at:
                row = (*row[:2], size_at[position], *row[3:])
            if row[0] == Action.ALLOC:
                absent.discard(address)
                if position in size_at and not row[2]:
                    absent.add(address)
                    continue
            elif address in absent:
                absent.discard(address)
                continue
            found.append(row)
        return found
