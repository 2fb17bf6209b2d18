"""Energy windows that are open, on every card, from the moments they were asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuledger.collect.edges import EdgeFinder
from gpuledger.model.energy_window import Edge, WindowEnergy, measure_window


class Counted(Protocol):
    """What is asked of one card."""

    index: int

    def read_energy_mj(self) -> int | None:
        """Return the energy counter; None where it cannot be read."""

    def read_throttled_ns(self) -> int | None:
        """Return how long the power cap has held the clock down."""


@dataclass
class _Window:
    """A window whose edges are still looked for: ``edges`` holds start and end of each card once they are known."""

    name: str
    start_ns: int
    end_ns: int | None = None
    edges: dict[tuple[int, str], Edge | None] = field(default_factory=dict)


class EnergyWindows:
    """Measures windows on all cards. Nothing is read but by :meth:`read`, when ``due_ns`` has come.

    Args:
        cards: The cards.
        keep: Called with name, card's number and energy of every window that is finished.
        clock_ns: Unix time.
        delay_ns: How long after it is due a read may come.
    """

    def __init__(
        self,
        cards: Sequence[Counted],
        keep: Callable[[str, int, WindowEnergy], None],
        clock_ns: Callable[[], int] = time.time_ns,
        delay_ns: int = 0,
    ) -> None:
        self._finders = {
            card.index: EdgeFinder(card.read_energy_mj, card.read_throttled_ns, clock_ns, delay_ns * len(cards))
            for card in cards
        }
        self._keep = keep
        self._windows: dict[int, _Window] = {}

    @property
    def due_ns(self) -> int | None:
        """Return when a counter is to be read next; None while no edge is looked for."""
        return min((finder.due_ns for finder in self._finders.values() if finder.due_ns is not None), default=None)

    @property
    def read_ns(self) -> int:
        """Return how long the next read will take."""
        return max((finder.read_ns for finder in self._finders.values() if finder.due_ns is not None), default=0)

    def learn(self) -> None:
        """Find a tick of every counter before anything is measured."""
        for finder in self._finders.values():
            finder.learn()

    def read(self) -> None:
        """Read the counter that is due first, once."""
        due = [finder for finder in self._finders.values() if finder.due_ns is not None]
        if due:
            min(due, key=lambda finder: finder.due_ns or 0).read()

    def begin(self, number: int, name: str, at_ns: int) -> None:
        """Open a window at a moment that has just been."""
        window = self._windows[number] = _Window(name, at_ns)
        self._want(number, window, "start", at_ns)

    def end(self, number: int, at_ns: int) -> None:
        """Close a window at a moment that has just been; one that is not open is none."""
        window = self._windows.get(number)
        if window is not None and window.end_ns is None:
            window.end_ns = at_ns
            self._want(number, window, "end", at_ns)

    def end_all(self, at_ns: int) -> None:
        """Close every window."""
        for number in list(self._windows):
            self.end(number, at_ns)

    def _want(self, number: int, window: _Window, which: str, at_ns: int) -> None:
        for index, finder in self._finders.items():

            def found(edge: Edge | None, place: tuple[int, str] = (index, which)) -> None:
                window.edges[place] = edge
                if len(window.edges) == 2 * len(self._finders):
                    self._finish(number, window)

            finder.want(at_ns, found)

    def _finish(self, number: int, window: _Window) -> None:
        """Keep the energy on each card; where an edge was not found the window is known, its energy is not."""
        del self._windows[number]
        assert window.end_ns is not None
        for index in self._finders:
            start, end = window.edges[index, "start"], window.edges[index, "end"]
            energy = WindowEnergy(window.start_ns, window.end_ns, None, None, 0, None)
            self._keep(window.name, index, energy if start is None or end is None else measure_window(start, end))
