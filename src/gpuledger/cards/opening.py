"""The only module that opens GPUs: the list of vendors, and the GPUs of this machine.

A built-in vendor is a module like :mod:`gpuledger.cards.nvidia` and an entry in :data:`BUILT_IN`. A vendor of another
package is an entry point in the group ``gpuledger.cards`` that refers to a :class:`gpuledger.cards.vendor.Vendor`.
Every process that reads GPUs finds it there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger.cards.card import Card
from gpuledger.cards.nvidia import NVIDIA
from gpuledger.cards.vendor import Source, Vendor
from gpuledger.errors import GpuLedgerError, NoDeviceError

BUILT_IN: tuple[Vendor, ...] = (NVIDIA,)
"""The built-in vendors, in the order in which their GPUs are numbered."""

GROUP = "gpuledger.cards"
"""Entry point group of other packages' vendors."""

_HINT = "Run gpuledger doctor to see what is missing"


@dataclass(frozen=True)
class OpenCards:
    """The vendors with opened GPUs, and why the others could not be opened.

    Attributes:
        sources: GPUs by vendor.
        failures: Name of a vendor or an entry point -> why it has no GPUs here.
    """

    sources: Mapping[str, Source]
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def numbers(self) -> list[int]:
        """Return the indices of all GPUs: a vendor's own indices, after those of the vendors before it."""
        return [first + number for first, source in self._numbered() for number in source.numbers]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes on how the GPUs are read."""
        return tuple(note for source in self.sources.values() for note in source.notes)

    @property
    def driver_version(self) -> str | None:
        """Return the first driver's version."""
        return next((source.driver_version for source in self.sources.values()), None)

    @property
    def shortest_interval_ns(self) -> int:
        """Return the minimum interval between two readings of all GPUs, in ns."""
        return max((source.shortest_interval_ns for source in self.sources.values()), default=0)

    def choose(self, wanted: Sequence[int] | None = None) -> list[Card]:
        """Return all GPUs, or those in ``wanted`` by index.

        Raises:
            NoDeviceError: there is none, an index does not exist, or a GPU cannot be opened.
        """
        there = self.numbers
        if not there:
            raise NoDeviceError("this machine has no GPU", hint=_HINT)
        missing = [number for number in wanted or () if number not in there]
        if missing:
            have = str(there[0]) if len(there) == 1 else f"{there[0]} to {there[-1]}"
            raise NoDeviceError(
                f"GPU {missing[0]}: this machine has no such GPU", hint=f"Choose a GPU of this machine: {have}"
            )
        return [self._card(number) for number in wanted or there]

    def readable(self) -> list[Card]:
        """Return the GPUs that can be opened."""
        cards = []
        for number in self.numbers:
            try:
                cards.append(self._card(number))
            except GpuLedgerError:
                continue
        return cards

    def find(self, uuid: str) -> Card | None:
        """Return the GPU with a UUID; None if there is none. Opens no other GPU.

        Raises:
            NoDeviceError: it cannot be opened.
        """
        for first, source in self._numbered():
            number = source.find_number(uuid) if uuid else None
            if number is not None:
                return self._opened(first, source, number)
        return None

    def close(self) -> None:
        """Stop the processes that were started to read the GPUs."""
        for source in self.sources.values():
            source.close()

    def _card(self, number: int) -> Card:
        for first, source in self._numbered():
            if number - first in source.numbers:
                return self._opened(first, source, number - first)
        raise NoDeviceError(f"GPU {number}: this machine has no such GPU", hint=_HINT)

    @staticmethod
    def _opened(first: int, source: Source, number: int) -> Card:
        try:
            card = source.card(number)
        except GpuLedgerError:
            raise
        except Exception as error:  # code of another package can raise anything
            raise NoDeviceError(
                f"GPU {number}: cannot be opened: {type(error).__name__}: {error}", hint=_HINT
            ) from error
        card.index = first + number
        return card

    def _numbered(self) -> Iterator[tuple[int, Source]]:
        """Yield each source with the index of its first GPU among all GPUs."""
        first = 0
        for source in self.sources.values():
            yield first, source
            first += max(source.numbers, default=-1) + 1


@functools.cache
def _vendors_of_packages() -> tuple[tuple[Vendor, ...], Mapping[str, str]]:
    """Return the vendors of other packages, and entry point -> why it could not be loaded. Raises nothing."""
    from importlib.metadata import entry_points

    found, failures = list[Vendor](), dict[str, str]()
    try:
        points = list(entry_points(group=GROUP))
    except Exception as error:
        return (), {"entry points": f"the list of installed packages cannot be read: {type(error).__name__}: {error}"}
    for point in points:
        try:
            vendor = point.load()
        except Exception as error:
            failures[point.name] = f"{point.value} cannot be loaded: {type(error).__name__}: {error}"
            continue
        if isinstance(vendor, Vendor):
            found.append(vendor)
        else:
            failures[point.name] = f"{point.value} is not a gpuledger.cards.vendor.Vendor"
    return tuple(found), failures


def find_vendors() -> tuple[Vendor, ...]:
    """Return every registered vendor that can be loaded."""
    return (*BUILT_IN, *_vendors_of_packages()[0])


def has_driver() -> bool:
    """Return whether this machine has a GPU driver. Loads no library."""
    return any(vendor.is_present() for vendor in BUILT_IN) or any(vendor.is_present() for vendor in find_vendors())


def survey_cards(*, present_only: bool = False, tool_interval_ns: int | None = None) -> OpenCards:
    """Return the GPUs of all vendors, and the reasons why others could not be opened.

    Args:
        present_only: Do not load the library of a vendor without an installed driver.
        tool_interval_ns: As in :func:`open_cards`.
    """
    sources, failures = dict[str, Source](), dict(_vendors_of_packages()[1])
    for vendor in find_vendors():
        if present_only and not vendor.is_present():
            continue
        try:
            sources[vendor.name] = vendor.open(tool_interval_ns)
        except GpuLedgerError as error:
            failures[vendor.name] = error.message
        except Exception as error:  # code of another package can raise anything
            failures[vendor.name] = f"{type(error).__name__}: {error}"
    return OpenCards(sources, failures)


def open_cards(tool_interval_ns: int | None = None) -> OpenCards:
    """Return the GPUs of this machine.

    Args:
        tool_interval_ns: If given, a vendor's command-line tool can be used for GPUs without the vendor's library. It
            runs as a child process and is read at this interval until the GPUs are closed.

    Raises:
        NoDeviceError: no vendor's GPUs can be opened.
    """
    found = survey_cards(tool_interval_ns=tool_interval_ns)
    if not found.sources:
        raise NoDeviceError(f"no GPU can be read: {'; '.join(found.failures.values())}", hint=_HINT)
    return found


def find_cards() -> list[Card]:
    """Return the GPUs that can be read on this machine; empty without a driver. Raises nothing.

    Each call opens the GPUs again, so that every thread can have its own objects.
    """
    return survey_cards(present_only=True).readable()
