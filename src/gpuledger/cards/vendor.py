"""A vendor of GPUs: how to detect its driver, and how to open its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Protocol

from gpuledger.cards.card import Card
from gpuledger.errors import NoDeviceError


class LibraryMissingError(NoDeviceError):
    """The vendor's library cannot be loaded. Its command-line tool can still work."""


class Source(Protocol):
    """The GPUs of one vendor. A GPU is opened on first use."""

    driver_version: str
    numbers: Sequence[int]
    """The vendor's own indices of its GPUs."""
    notes: tuple[str, ...]
    """Notes for a recording on how these GPUs are read."""
    shortest_interval_ns: int
    """Minimum interval between two readings; 0 if there is none."""

    def card(self, number: int) -> Card:
        """Return a GPU by its number.

        Raises:
            NoDeviceError: it cannot be opened.
        """

    def find_number(self, uuid: str) -> int | None:
        """Return the number of the GPU with a UUID; None where the vendor has no such GPU."""

    def close(self) -> None:
        """Stop the processes that were started to read the GPUs."""


class CardList:
    """A source with GPUs that are already open.

    Args:
        cards: The GPUs, with the vendor's own indices.
        driver_version: The driver's version.
        notes: As in :class:`Source`.
        shortest_interval_ns: As in :class:`Source`.
        stop: Stops the processes that were started to read the GPUs.
    """

    def __init__(
        self,
        cards: Sequence[Card],
        driver_version: str = "",
        *,
        notes: tuple[str, ...] = (),
        shortest_interval_ns: int = 0,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.driver_version = driver_version
        self.numbers: Sequence[int] = [card.index for card in cards]
        self.notes = notes
        self.shortest_interval_ns = shortest_interval_ns
        self.close = stop
        self._cards = dict(zip(self.numbers, cards, strict=True))

    def card(self, number: int) -> Card:
        """Return a GPU by its number."""
        return self._cards[number]

    def find_number(self, uuid: str) -> int | None:
        """Return the number of the GPU with a UUID."""
        return next((number for number, card in self._cards.items() if card.uuid == uuid), None)


@dataclass(frozen=True)
class Vendor:
    """One vendor, as registered in :mod:`gpuledger.cards.opening`.

    Args:
        name: Name shown to users.
        open: Returns its GPUs, or raises ``NoDeviceError`` with the reason. The argument is the interval between two
            readings in ns if a tool may be started to read them, else None. Libraries must be loaded here and not at
            import, because the module is imported in recorded programs.
        driver_files: If one of these files exists, the driver is installed.
        card_files: Glob pattern below ``/dev`` of the files that a user of the GPUs must be able to open.
        tool: Its command-line tool, for ``gpuledger doctor``.
        closed_hint: What to do if ``card_files`` cannot be opened.
        broken_hint: What to do if ``card_files`` exist but the GPUs cannot be opened.
    """

    name: str
    open: Callable[[int | None], Source]
    driver_files: tuple[str, ...]
    card_files: str = ""
    tool: str = ""
    closed_hint: str = "Add this user to the group of the device files"
    broken_hint: str = "Check that the driver and its library have the same version"

    def is_present(self) -> bool:
        """Return whether this machine has the vendor's driver. Loads nothing."""
        return any(Path(place).exists() for place in self.driver_files)

    def find_card_files(self, devices: Path = Path("/dev")) -> list[Path]:
        """Return the device files of its GPUs."""
        return sorted(map(Path, glob(str(devices / self.card_files)))) if self.card_files else []
