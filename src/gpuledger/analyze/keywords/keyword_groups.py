"""Entries in groups by keywords, and the bytes of the GPU that are no entry's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.keywords.keyword_file import CATEGORY, CLASS, OTHERS
from gpuledger.analyze.memory.entries import Entry, classes_by_path, list_entries
from gpuledger.analyze.memory.instant import Instant
from gpuledger.analyze.overview.balance import Balance, BalanceLine, build_balance
from gpuledger.model.accounts import DEVICE_LINES
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from gpuledger.analyze.keywords.keyword_file import Dictionary, Keyword, KeywordGroup
    from gpuledger.model.run import Rank


DRIVER = "driver"
MIB = 1 << 20


@dataclass(frozen=True)
class EntryGroup:
    """The entries that one group took, largest first."""

    name: str
    bytes: int
    entries: tuple[Entry, ...]

    @property
    def blocks(self) -> int:
        """Return how many allocations it took."""
        return sum(entry.blocks for entry in self.entries)


@dataclass(frozen=True)
class Overlap:
    """An entry that later groups would have taken as well; it counts in ``group`` alone."""

    entry: Entry
    group: str
    also: tuple[str, ...]


@dataclass(frozen=True)
class GroupedEntries:
    """One dictionary's groups, largest first, those that took nothing after them, ``Others`` last where it has any.

    Every entry is in exactly one, so their bytes sum to the allocated bytes.
    """

    dictionary: str
    groups: tuple[EntryGroup, ...]
    overlaps: tuple[Overlap, ...]


@dataclass(frozen=True)
class Untrackable:
    """What the GPU's used bytes hold and no entry does; ``bytes`` None: not known.

    ``lines`` of the balance sum to it, if any. ``driver_bytes``, the driver's own reserve, is not part of it: the GPU
    does not count it as used.
    """

    bytes: int | None
    source: str
    lines: tuple[BalanceLine, ...] = ()
    driver_bytes: int | None = None

    @property
    def with_driver_bytes(self) -> int | None:
        """Return it together with the driver's reserve; None where either is not known."""
        return None if self.bytes is None or self.driver_bytes is None else self.bytes + self.driver_bytes


@dataclass(frozen=True)
class Grouping:
    """One device at one instant, grouped by every dictionary of a keyword file.

    ``rank_of_several`` is None if the program has one process.
    """

    rank: int
    rank_of_several: int | None
    device_idx: int
    device_name: str
    instant: Instant
    allocated_bytes: int
    dictionaries: tuple[GroupedEntries, ...]
    untrackable: Untrackable
    notes: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Return allocated bytes and, where it is known, Untrackable."""
        return self.allocated_bytes + (self.untrackable.bytes or 0)


def group_rank(
    rank: Rank,
    dictionaries: tuple[Dictionary, ...],
    *,
    at: str = "peak",
    device_idx: int | None = None,
    step: int | None = None,
    expected_bytes: int | None = None,
) -> Grouping:
    """Return one device's entries in groups.

    Args:
        rank: One process of a run.
        dictionaries: From a keyword file.
        at: As for :func:`~gpuledger.analyze.memory.instant.resolve_instant`.
        device_idx: The same; None takes the device whose peak is highest.
        step: The same.
        expected_bytes: What the GPU holds by another tool's word; None takes the balance.

    Raises:
        EmptyRunError: no block was recorded.
        UsageError: there is no such device, instant or step.

    Source: caching allocator's history, exact, or the imported file; for Untrackable the balance.
    """
    balance = build_balance(rank, device_idx, at, step)
    entries = list_entries(rank, balance.instant)
    allocated = sum(entry.bytes for entry in entries)
    untrackable, notes = _untrackable(balance, allocated, expected_bytes)
    return Grouping(
        rank=rank.number,
        rank_of_several=rank.number_of_several,
        device_idx=balance.instant.device_idx,
        device_name=balance.device_name,
        instant=balance.instant,
        allocated_bytes=allocated,
        dictionaries=group_entries(entries, dictionaries, classes_by_path(rank)),
        untrackable=untrackable,
        notes=notes,
    )


def group_entries(
    entries: tuple[Entry, ...], dictionaries: tuple[Dictionary, ...], classes: dict[str, frozenset[str]]
) -> tuple[GroupedEntries, ...]:
    """Return ``entries`` divided once by each dictionary; ``classes`` are those of each module path."""
    matcher = _Matcher.of(entries, classes)
    return tuple(_divide(entries, dictionary, matcher) for dictionary in dictionaries)


@dataclass(frozen=True)
class _Matcher:
    """Every distinct text a keyword can be looked for in, and which entries have it."""

    names: pa.Array
    categories: pa.Array
    category_of: NDArray[np.int64]
    classes: pa.Array
    has_class: NDArray[np.bool_]
    """bool[paths, classes]"""
    path_of: NDArray[np.int64]

    @classmethod
    def of(cls, entries: tuple[Entry, ...], classes: dict[str, frozenset[str]]) -> _Matcher:
        import pyarrow as pa

        categories = sorted({entry.category for entry in entries})
        paths = sorted({entry.module for entry in entries})
        words = sorted({word for path in paths for word in classes.get(path, ())})
        has_class = np.zeros((len(paths), len(words)), dtype=bool)
        for row, path in enumerate(paths):
            has_class[row, [words.index(word) for word in classes.get(path, ())]] = True
        category_code, path_code = ({text: code for code, text in enumerate(texts)} for texts in (categories, paths))
        return cls(
            names=pa.array([entry.name for entry in entries], pa.string()),
            categories=pa.array(categories, pa.string()),
            category_of=np.array([category_code[entry.category] for entry in entries], dtype=np.int64),
            classes=pa.array(words, pa.string()),
            has_class=has_class,
            path_of=np.array([path_code[entry.module] for entry in entries], dtype=np.int64),
        )

    def find(self, keyword: Keyword) -> NDArray[np.bool_]:
        """Return which entries ``keyword`` matches."""
        if keyword.field == CATEGORY:
            return keyword.find(self.categories)[self.category_of]
        if keyword.field == CLASS:
            paths: NDArray[np.bool_] = np.any(self.has_class & keyword.find(self.classes), axis=1)
            return paths[self.path_of]
        return keyword.find(self.names)

    def find_group(self, group: KeywordGroup) -> NDArray[np.bool_]:
        """Return which entries any keyword of ``group`` matches."""
        found = np.zeros(len(self.names), dtype=bool)
        for keyword in group.keywords:
            found |= self.find(keyword)
        return found


def _divide(entries: tuple[Entry, ...], dictionary: Dictionary, matcher: _Matcher) -> GroupedEntries:
    matches = np.zeros((len(dictionary.groups), len(entries)), dtype=bool)
    for row, group in enumerate(dictionary.groups):
        matches[row] = matcher.find_group(group)
    first: list[int] = np.where(matches.any(axis=0), matches.argmax(axis=0), -1).tolist()
    names = [group.name for group in dictionary.groups]
    taken: dict[str, list[Entry]] = {name: [] for name in (*names, OTHERS)}
    for entry, place in zip(entries, first, strict=True):
        taken[names[place] if place >= 0 else OTHERS].append(entry)
    groups = [EntryGroup(name, sum(entry.bytes for entry in held), tuple(held)) for name, held in taken.items()]
    shown = [group for group in groups if group.name != OTHERS or group.entries]
    also = (
        (place, np.flatnonzero(matches[:, place])[1:].tolist()) for place in np.flatnonzero(matches.sum(axis=0) > 1)
    )
    overlaps = [Overlap(entries[place], names[first[place]], tuple(names[row] for row in rows)) for place, rows in also]
    order = {name: position for position, name in enumerate(names)}
    shown.sort(key=lambda group: (group.name == OTHERS, -group.bytes, order.get(group.name, len(order))))
    return GroupedEntries(dictionary.name, tuple(shown), tuple(overlaps))


def _untrackable(
    balance: Balance, allocated_bytes: int, expected_bytes: int | None
) -> tuple[Untrackable, tuple[str, ...]]:
    """Return what no entry holds, and notes on what is missing."""
    if expected_bytes is not None:
        return _from_expected(allocated_bytes, expected_bytes)
    lines = tuple(line for line in balance.lines if line.name in DEVICE_LINES and line.name != DRIVER)
    driver_bytes = next((line.bytes for line in balance.lines if line.name == DRIVER), None)
    known = tuple(line for line in lines if line.bytes is not None)
    total = sum(line.bytes or 0 for line in known)
    if balance.instant.device_idx < 0:
        return Untrackable(None, "CPU tensors: there is no GPU"), ()
    if balance.used_bytes is None:
        held = [f"{line.name} {format_bytes(line.bytes)}" for line in known if line.bytes]
        note = "The GPU was not sampled, so Untrackable is unknown. Give the GPU's memory with --reported-memory."
        torch_note = f" PyTorch used {format_bytes(total)} more than the entries: {', '.join(held)}." if held else ""
        return Untrackable(None, "the GPU was not sampled"), (note + torch_note,)
    if total < 0:
        note = f"The GPU reported {format_bytes(-total)} less than the sum of the entries, so Untrackable is not shown."
        return Untrackable(None, "the balance", known), (note,)
    missing = [line.name for line in lines if line.bytes is None]
    notes = [f"Not measured, so part of the unaccounted memory: {', '.join(missing)}."] if missing else []
    found = Untrackable(total, "the balance", known, driver_bytes)
    if found.driver_bytes and found.with_driver_bytes is not None:
        own, driver, both = (f"{size / MIB:,.1f} MiB" for size in (total, found.driver_bytes, found.with_driver_bytes))
        notes.append(
            f"Untrackable is the used memory of the GPU minus the entries: {own}. It does not include the memory that "
            f"the driver reserves, {driver}. With it, Untrackable would be {both}."
        )
    return found, tuple(notes)


def _from_expected(allocated_bytes: int, expected_bytes: int) -> tuple[Untrackable, tuple[str, ...]]:
    left = expected_bytes - allocated_bytes
    if left >= 0:
        return Untrackable(left, "--reported-memory"), ()
    return Untrackable(None, "--reported-memory"), (
        f"--reported-memory {format_bytes(expected_bytes)} is {format_bytes(-left)} less than the sum of the entries, "
        f"{format_bytes(allocated_bytes)}, so Untrackable is not shown.",
    )
