"""A followed program's requests, changed to those that it would make on other GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger.analyze.allocator.pool_history import Event
from gpuledger.analyze.posting.replay import SMALL_BYTES
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


class PoolEvents:
    """A program's requests for one pool of the allocator, on each GPU. Those that are the same on all are kept once.

    Args:
        rows: The requests on the GPU for which the program was followed.
        elsewhere: Their changes on other GPUs.
    """

    def __init__(self, rows: Sequence[Row], elsewhere: RequestsElsewhere) -> None:
        replaced = {position: place for position, kind, _, place, _, _ in elsewhere.changes if kind == REPLACE}
        self._same: dict[bool, list[Event]] = {True: [], False: []}
        """Whether they are small -> events that are the same on all GPUs."""
        self._others: list[tuple[int, int, list[Event]]] = []
        """Index of the bytes on other GPUs, those on this one, and a request with its free."""
        live: dict[int, list[Event]] = {}
        for position, (action, address, size_bytes, stream, _) in enumerate(rows):
            event = (float(position), action, address, size_bytes, stream)
            if action != Action.ALLOC:
                live.pop(address, []).append(event)
            elif position in replaced:
                live[address] = [event]
                self._others.append((replaced[position], size_bytes, live[address]))
            else:
                live[address] = same = self._same[size_bytes <= SMALL_BYTES]
                same.append(event)
        self._others += _added(elsewhere.changes)

    def are_same(self, sizes: Sequence[int]) -> bool:
        """Return whether a GPU's requests are those of the GPU for which the program was followed."""
        return not sizes or all(sizes[place] == own_bytes for place, own_bytes, _ in self._others)

    def key(self, sizes: Sequence[int], *, small: bool) -> tuple[int, ...]:
        """Return what identifies the events of one pool. ``sizes`` are as in :meth:`of`."""
        known = {place: sizes[place] if sizes else own_bytes for place, own_bytes, _ in self._others}
        inside = {place: size for place, size in known.items() if size and (size <= SMALL_BYTES) is small}
        return (small, *(number for place in sorted(inside) for number in (place, inside[place])))

    def of(self, sizes: Sequence[int], *, small: bool) -> list[Event]:
        """Return the events of one pool in order. ``sizes`` are a GPU's bytes of changed requests; none for its own."""
        found = list(self._same[small])
        for place, own_bytes, (made, *freed) in self._others:
            size_bytes = sizes[place] if sizes else own_bytes
            if size_bytes and (size_bytes <= SMALL_BYTES) is small:
                found += [(*made[:3], size_bytes, made[4]), *freed]
        return sorted(found)


def _added(changes: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, list[Event]]]:
    """Yield the requests that only other GPUs make, each with its free. They are before those at their position."""
    begun: dict[int, list[Event]] = {}
    for order, (position, kind, number, place, stream, _) in enumerate(changes):
        if kind == REPLACE:
            continue
        before = position - 1 + (order + 1) / (len(changes) + 1)
        if kind == ADD:
            begun[number] = [(before, int(Action.ALLOC), -number, 0, stream)]
            yield place, 0, begun[number]
        else:
            begun[number].append((before, int(Action.FREE_REQUESTED), -number, 0, -1))
