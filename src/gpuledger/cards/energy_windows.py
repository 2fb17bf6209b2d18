"""Measure energy between given times, on every GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuledger.cards.card import Card
from gpuledger.cards.energy_edges import EdgeFinder
from gpuledger.model.energy_window import Edge, WindowEnergy, measure_window


@dataclass
class _Window:
    """An interval with ends that are not all known.

    ``edges`` contains start and end on each GPU once they are known.
    """

    name: str
    start_ns: int
    end_ns: int | None = None
    edges: dict[tuple[int, str], Edge | None] = field(default_factory=dict)


class EnergyWindows:
    """Measures the energy of intervals on all GPUs. Call :meth:`read` at ``due_ns``; nothing else reads the GPUs.

    Args:
        cards: The GPUs.
        keep: Called with name, GPU index and energy of every finished interval.
        clock_ns: Returns Unix time in ns.
    """

    def __init__(
        self,
        cards: Sequence[Card],
        keep: Callable[[str, int, WindowEnergy], None],
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.due_ns: int | None = None
        """Time of the next :meth:`read`, in Unix ns; None if nothing has to be read."""
        self._finders = {card.index: EdgeFinder(card, clock_ns) for card in cards}
        self._keep = keep
        self._windows: dict[int, _Window] = {}

    @property
    def read_ns(self) -> int:
        """Return the expected duration of the next read, in ns."""
        first = self._due_first()
        return 0 if first is None else first.read_ns

    def read(self) -> None:
        """Read the counter of the GPU that is due first, once."""
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
        """Start an interval at a time just before now."""
        window = self._windows[number] = _Window(name, at_ns)
        self._want(number, window, "start", at_ns)

    def end(self, number: int, at_ns: int) -> None:
        """End an interval at a time just before now. Does nothing if it was not started."""
        window = self._windows.get(number)
        if window is not None and window.end_ns is None:
            window.end_ns = at_ns
            self._want(number, window, "end", at_ns)

    def end_all(self, at_ns: int) -> None:
        """End all intervals."""
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
        """Report the energy on each GPU. If an end was not found, the interval is reported without energy."""
        del self._windows[number]
        assert window.end_ns is not None
        for index in self._finders:
            start, end = window.edges[index, "start"], window.edges[index, "end"]
            energy = WindowEnergy(window.start_ns, window.end_ns, None, None, 0, None)
            self._keep(window.name, index, energy if start is None or end is None else measure_window(start, end))
