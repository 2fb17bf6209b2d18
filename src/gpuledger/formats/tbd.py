"""Logs of the patched MXNet 0.12 used to profile Sockeye, and the ``_ANALYSIS`` JSON made from them.

These lines can be anywhere in the program's output::

    [mem] Allocate 4194304 bytes GPU memory (forward_features:stage1_unit1_bn1).
    [mem] 10240 MB GPU global memory free, total 11172 MB.
    [mem] Release GPU memory.
    Allocate 12 MB GPU memory (proposal_workspace).
    Free 12 MB GPU memory (proposal_mask).

Threads wrote them at once: several can be in one line, follow other output, or split each other in two. A split message
is joined again if its two parts match; if they do not, there is a note on the line. A release has neither a name nor a
size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError
from gpuledger.formats.entries import (
    Entries,
    LoggedEntry,
    UnreadParts,
    begins_as,
    files_of,
    one_reading,
    read_each,
    reading_tables,
    whole_lines,
)
from gpuledger.formats.json_pull import begins_with_object
from gpuledger.formats.mxnet.tags import category_of
from gpuledger.formats.tbd_analysis import read_analysis
from gpuledger.formats.text_lines import shown
from gpuledger.model.imported import ImportedRank, ImportedRun

MIB = 1 << 20
_TAG = r"(?:(?!\[mem\]|Allocate \d|Free \d).)"
_MESSAGE = re.compile(
    rf"\[mem\] Allocate (?P<bytes>[+-]?\d{{1,20}}) bytes GPU memory \((?P<tag>{_TAG}*?)\)\.(?=\s|\[|$|Allocate|Free)"
    rf"|(?<!\] )Allocate (?P<mb>[+-]?\d{{1,12}}) MB GPU memory \((?P<mb_tag>{_TAG}*?)\)\."
    rf"|Free (?P<free_mb>[+-]?\d{{1,12}}) MB GPU memory \((?P<free_tag>{_TAG}*?)\)\."
    r"|\[mem\] (?P<free>\d{1,12}) MB GPU global memory free, total (?P<total>\d{1,12}) MB\."
    r"|(?P<release>\[mem\] Release GPU memory\.)"
)
_HEAD = re.compile(r"\[mem\](?= ?(?:$|A|R|\d))|(?<!\w)Allocate(?= ?(?:$|\d))")
_TAIL = re.compile(r"GPU memory|\)\.\s*$")
_INPUTS = re.compile(r"^\(?(source|target|target_label|data)\)?$")
_ANY = re.compile(rb"\[mem\] (Allocate|Release|\d+ MB GPU)|Allocate \d+ MB GPU memory \(")


def looks_like(path: Path, head: bytes) -> bool:
    """Return whether a file is such a log or analysis, or a folder has one."""
    if path.is_dir():
        return any(file.is_file() and _is_ours(file) for file in path.iterdir())
    return _is_analysis(path, head) or _ANY.search(head.replace(b"\0", b"")) is not None


def _is_analysis(path: Path, head: bytes) -> bool:
    return path.name.endswith("_ANALYSIS") and begins_with_object(head)


def _is_ours(path: Path) -> bool:
    return begins_as(path, looks_like, 1 << 18)


def read_files(paths: tuple[Path, ...], name: str, options: Mapping[str, Any]) -> ImportedRun:
    """Return the logs as one run, one rank per file.

    Raises:
        InputError: no file has an entry.
    """
    unread = UnreadParts()
    read_one = partial(_read_file, unread=unread)
    ranks, read = read_each(files_of(paths, _is_ours), read_one, unread)
    if not ranks:
        raise InputError(next(iter(unread.texts()), f"{paths[0]}: no log with [mem] lines found"))
    return ImportedRun(name, "tbd-log", read, ranks, unread=unread.texts(), facts={"started_ns": None})


def _read_file(number: int, path: Path, unread: UnreadParts) -> ImportedRank | None:
    rank = _rank_of(number, path, unread)
    if rank is None:
        unread.add(f"{path}: the log has no allocations")
    return rank


def _rank_of(number: int, path: Path, unread: UnreadParts) -> ImportedRank | None:
    with path.open("rb") as file:
        head = file.read(1024)
    if begins_with_object(head):
        entries, notes = read_analysis(path, unread)
        facts = {"devices": [{"device_idx": 0, "name": "", "total_bytes": None}]}
        return ImportedRank(number, entries.tables(), facts, notes) if entries.count else None
    log = _Log(path, unread)
    log.read()
    return log.rank(number) if log.entries.count else None


class _Log:
    """One log, parsed message by message."""

    def __init__(self, path: Path, unread: UnreadParts) -> None:
        self.entries = Entries(path.stat().st_size)
        self._path = path
        self._unread = unread
        self._index = 0
        self._live: dict[str, list[int]] = {}
        self._releases = 0
        self._unmatched_frees = 0
        self._cards: list[tuple[int, int, int]] = []
        self._cut: tuple[int, str] | None = None

    def read(self) -> None:
        """Read every message of the file."""
        for number, text in whole_lines(self._path, self._unread):
            if "[mem]" not in text and "GPU memory" not in text and self._cut is None:
                continue
            left = _MESSAGE.sub(lambda found, at=number: self._take(found, at), text).strip()  # type: ignore[misc]
            if left:
                self._mend(number, left)
        if self._cut is not None:
            self._bad(self._cut[0], self._cut[1])

    def _mend(self, number: int, left: str) -> None:
        """Join the rest of a line with the start of a message that was split before it."""
        if self._cut is not None and (_TAIL.search(left) or not _HEAD.search(left)):
            whole = self._cut[1] + left
            found = _MESSAGE.search(whole)
            if found:
                self._take(found, number)
                self._cut = None
                left = f"{whole[: found.start()]}{whole[found.end() :]}".strip()
        head = _HEAD.search(left)
        if head:
            if self._cut is not None:
                self._bad(*self._cut)
            self._cut = (number, left[head.start() :])

    def _bad(self, number: int, text: str) -> None:
        self._unread.add(f"{self._path.name}: line {number:,}: incomplete line: {shown(text)}")

    def _take(self, found: re.Match[str], number: int) -> str:
        """Process one message, and return its replacement in the line, which is empty."""
        try:
            if found["bytes"] is not None:
                self._allocate(found["tag"], int(found["bytes"]))
            elif found["mb"] is not None:
                self._allocate(found["mb_tag"], int(found["mb"]) * MIB)
            elif found["free_mb"] is not None:
                self._free(found["free_tag"])
            elif found["total"] is not None:
                self._cards.append((max(self._index - 1, 0), int(found["free"]) * MIB, int(found["total"]) * MIB))
            else:
                self._releases += 1
        except ValueError as error:
            self._unread.add(f"{self._path.name}: line {number:,}: {error}")
        return ""

    def _allocate(self, tag: str, size_bytes: int) -> None:
        category = "input" if _INPUTS.match(tag) else category_of(tag)
        if category == "activation" and not tag.startswith("forward_features"):
            category = "other"
        row = self.entries.add(LoggedEntry(tag, size_bytes, category=category, alloc_index=self._index))
        self._live.setdefault(tag, []).append(row)
        self._index += 1

    def _free(self, tag: str) -> None:
        rows = self._live.get(tag)
        if rows:
            self.entries.free(rows.pop(), self._index)
            self._index += 1
        else:
            self._unmatched_frees += 1

    def rank(self, number: int) -> ImportedRank:
        """Return the log as rank ``number``."""
        tables = self.entries.tables()
        held = self.entries.bytes_by_device().get(0, 0)
        total = self._cards[-1][2] if self._cards else None
        notes = ["The log has no times, steps, phases or devices."]
        if self._releases or self._unmatched_frees:
            count = self._releases + self._unmatched_frees
            releases = "1 release has" if count == 1 else f"{count:,} releases have"
            notes.append(f"{releases} no size in the log, so the sum includes everything ever allocated.")
        else:
            notes.append("The log has no releases, so nothing was freed.")
        if self._cards:
            used = self._cards[-1][2] - self._cards[-1][1]
            if used >= held and not self._releases:
                tables |= reading_tables([one_reading(self.entries, 0, used, event_index=self._index - 1)])
                notes.append(
                    "The GPU's memory in use is from the log's last line of free and total "
                    "memory. It includes other processes."
                )
            else:
                notes.append(
                    f"The log's last line of free and total memory shows {used / MIB:,.0f} MiB in use, "
                    f"and everything ever allocated sums to {held / MIB:,.0f} MiB."
                )
        facts = {"devices": [{"device_idx": 0, "name": "", "total_bytes": total}]}
        return ImportedRank(number, tables, facts, tuple(notes))
