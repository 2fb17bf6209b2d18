"""Energy windows that are open, on every GPU, from the moments they were asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuledger.cards.card import Card
from gpuledger.cards.energy_edges import EdgeFinder
from gpuledger.model.energy_window import Edge, WindowEnergy, measure_window


@dataclass
class _Window:
    """A window whose edges are still looked for: ``edges`` holds start and end of each GPU once they are known."""

    name: str
    start_ns: int
    end_ns: int | None = None
    edges: dict[tuple[int, str], Edge | None] = field(default_factory=dict)


class EnergyWindows:
    """Measures windows on all GPUs. Nothing is read but by :meth:`read`, when ``due_ns`` has come.

    Args:
        cards: The GPUs.
        keep: Called with name, GPU's number and energy of every window that is finished.
        clock_ns: Unix time.
    """

    def __init__(
        self,
        cards: Sequence[Card],
        keep: Callable[[str, int, WindowEnergy], None],
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.due_ns: int | None = None
        """When a GPU is to be asked next; None while no edge is looked for."""
        self._finders = {card.index: EdgeFinder(card, clock_ns) for card in cards}
        self._keep = keep
        self._windows: dict[int, _Window] = {}

    @property
    def read_ns(self) -> int:
        """Return how long the next read will take."""
        first = self._due_first()
        return 0 if first is None else first.read_ns

    def read(self) -> None:
        """Ask the GPU that is due first, once."""
        first = self._due_first()
        if first is not None:
            first.read()
            self._plan()

    def _due_first(self) -> EdgeFinder | None:
        due = [finder for finder in self._finders.values() if finder.due_ns is not None]
        return min(due, key=lambda finder: finder.due_ns or 0, default=None)

    def _plan(self) -> None:
        first = self._due_first()
        self.due_ns = None if first is None else first.due_ns

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
        self._plan()

    def _finish(self, number: int, window: _Window) -> None:
        """Keep the energy on each GPU; where an edge was not found the window is known, its energy is not."""
        del self._windows[number]
        assert window.end_ns is not None
        for index in self._finders:
            start, end = window.edges[index, "start"], window.edges[index, "end"]
            energy = WindowEnergy(window.start_ns, window.end_ns, None, None, 0, None)
            self._keep(window.name, index, energy if start is None or end is None else measure_window(start, end))
