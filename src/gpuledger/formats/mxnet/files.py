"""The files of MXNet's GPU memory profiler, in all of its formats.

| form | a row | sizes | rows are |
| --- | --- | --- | --- |
| headerless | ``tag,size`` | MiB (the earliest: bytes) | every allocation from the GPU, never a free |
| seven columns | time, scope, name, data struct, requested, actual, reuse | bytes | every allocation, never a free |
| five columns | name, requested, device, actual, reuse | bytes | what was alive when the file was written |
| JSON trees | nested by the parts of the tag | bytes | what was alive when the file was written |
| stack log | a warning with a call stack | MiB | the allocations of the headerless form with an unknown tag |

A log next to its CSV adds call stacks to the entries of the CSV.
``nvml_amend`` in the last CSV is the memory of the process beyond its entries, as reported by the driver. It is a line
of the GPU memory balance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from gpuledger.analyze.posting.rows import stack_table
from gpuledger.errors import InputError
from gpuledger.formats.entries import (
    Entries,
    LoggedEntry,
    UnreadParts,
    files_of,
    one_reading,
    reading_tables,
    whole_lines,
)
from gpuledger.formats.json_pull import begins_with_object
from gpuledger.formats.mxnet.stacks import StackLog, is_stack_log, log_beside, read_stack_log
from gpuledger.formats.mxnet.tags import CATEGORY_OF_STRUCT, category_of, module_of
from gpuledger.formats.mxnet.tree import leaves
from gpuledger.formats.text_lines import decoded, shown
from gpuledger.model.imported import ImportedRank, ImportedRun

AMEND = "nvml_amend"
MIB = 1 << 20
BYTES_FROM = 1 << 20
"""From this size on, a headerless size is not MiB, because no GPU has 1 TiB. The earliest version wrote bytes."""
MAX_DEVICE = 4_096
_PID = re.compile(r"pid_(\d{1,9})\b")
_HEADERLESS = re.compile(
    r'^"?(in_arg|arg_grad|aux_state|data_entry|head_grad|workspace|optimizer_state|unknown)[^\n]*,'
    r"\s*\d+(\.\d+)?(e[+-]\d+)?\s*$",
    re.MULTILINE,
)
_TREE = re.compile(rb'gpu_memory_profile|"name"\s*:\s*"[^"]*_dev\d{1,4}"')
_INTEGER = re.compile(r"[+-]?\d{1,20}$")


class Form(Enum):
    """The formats of a file."""

    HEADERLESS = "headerless"
    SEVEN_COLUMNS = "seven columns"
    FIVE_COLUMNS = "five columns"
    TREE = "JSON trees"
    STACK_LOG = "stack log"


def looks_like(path: Path, head: bytes) -> bool:
    """Return whether a file has one of these formats, or a folder has such a file."""
    if path.is_dir():
        return any(file.is_file() and _is_ours(file) for file in path.iterdir())
    return _form_of(head) is not None


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _form_of(file.read(8_192)) is not None
    except OSError:
        return False


def _form_of(head: bytes) -> Form | None:
    if begins_with_object(head) and _TREE.search(head[:4096].replace(b"\0", b"")):
        return Form.TREE
    text = decoded(head).lstrip("\ufeff \t\r\n")
    title = text[:200].replace('"', "").replace(" ", "").lower()
    if title.startswith("attributename,requestedsize,device,actualsize"):
        return Form.FIVE_COLUMNS
    if title.startswith("timestamp,scope,attributename,datastruct"):
        return Form.SEVEN_COLUMNS
    if is_stack_log(head):
        return Form.STACK_LOG
    return Form.HEADERLESS if _HEADERLESS.search(text) else None


def read_files(paths: tuple[Path, ...], name: str, options: Mapping[str, Any]) -> ImportedRun:
    """Return the files as one run, one rank per file, in the order of their process ids.

    Raises:
        InputError: no file has an entry.
    """
    unread = UnreadParts()
    files = sorted(files_of(paths, _is_ours), key=lambda path: (_pid(path), path.name))
    beside = {log_beside(path) for path in files if path.suffix != ".log"}
    ranks: list[ImportedRank] = []
    read = []
    for path in (one for one in files if one not in beside):
        try:
            reader = _FileReader(path, unread)
            if not reader.read():
                continue
        except OSError as error:
            unread.add(f"{path}: {error.strerror or error}")
            continue
        ranks.append(reader.rank(len(ranks)))
        read.append(str(path))
    if not ranks:
        first = next(iter(unread.texts()), f"{paths[0]}: no file of MXNet's memory profiler found")
        raise InputError(f"{first}" if ":" in first else f"{paths[0]}: {first}")
    return ImportedRun(name, "mxnet", tuple(read), tuple(ranks), unread=unread.texts(), facts={"started_ns": None})


def single_runs(files: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the files that are one run each: none if every name has a process id, because those are ranks of a run."""
    beside = {log_beside(path) for path in files if path.suffix != ".log"}
    runs = tuple(path for path in files if path not in beside)
    return () if all(_pid(path) >= 0 for path in runs) else runs


def _pid(path: Path) -> int:
    found = _PID.search(path.name)
    return int(found[1]) if found else -1


class _FileReader:
    """Reads one file of any format."""

    def __init__(self, path: Path, unread: UnreadParts) -> None:
        self.entries = Entries(path.stat().st_size)
        self._path = path
        self._unread = unread
        self._amend_bytes: dict[int, int] = {}
        self._reused: list[int] = [0, 0]
        self._form = Form.HEADERLESS
        self._was_bytes = False
        self._stacks = StackLog()
        self._log_name = ""

    def read(self) -> bool:
        """Read the file; return whether it has an entry."""
        try:
            with self._path.open("rb") as file:
                self._form = _form_of(file.read(8_192)) or Form.HEADERLESS
            {
                Form.HEADERLESS: self._headerless,
                Form.SEVEN_COLUMNS: lambda: self._rows(self._seven),
                Form.FIVE_COLUMNS: lambda: self._rows(self._five),
                Form.TREE: self._tree,
                Form.STACK_LOG: self._stack_log,
            }[self._form]()
        except InputError as error:
            self._unread.add(error.message)
        if not self.entries.count and not self._amend_bytes:
            self._unread.add(f"{self._path}: the file has no entries of MXNet's memory profiler")
            return False
        return True

    # -- forms ----------------------------------------------------------------------------------------------------

    def _lines(self) -> Iterator[tuple[int, str]]:
        for number, text in whole_lines(self._path, self._unread):
            if text.strip():
                yield number, text.strip()

    def _bad(self, number: int, text: str, why: str) -> None:
        self._unread.add(f"{self._path.name}: line {number:,}: {why}: {shown(text)}")

    def _headerless(self) -> None:
        sizes = (_real(text.rpartition(",")[2]) for _, text in whole_lines(self._path, UnreadParts()) if "," in text)
        known = [(size, size.is_integer()) for size in _extremes(sizes)]
        self._was_bytes = bool(known) and max(known)[0] >= BYTES_FROM and all(whole for _, whole in known)
        self._read_log_beside()
        for number, text in self._lines():
            tag, comma, size = text.rpartition(",")
            value, tag = _real(size), unquoted(tag)
            if not comma or not tag or value is None:
                self._bad(number, text, "expected a tag and its size")
                continue
            try:
                size_bytes = round(value if self._was_bytes else value * MIB)
                category, module = category_of(tag), module_of(tag)
                stack_id = self._stacks.take(tag, value)
                self.entries.add(
                    LoggedEntry(tag, size_bytes, None, category, module, alloc_index=None, stack_id=stack_id)
                )
            except (ValueError, OverflowError) as error:
                self._bad(number, text, str(error))

    def _read_log_beside(self) -> None:
        """Read the log next to the file, if it exists. Its stacks belong to the entries with the same tag and size."""
        log = log_beside(self._path)
        if log != self._path and log.is_file() and _is_ours(log):
            self._stacks, self._log_name = read_stack_log(log, self._unread), log.name

    def _stack_log(self) -> None:
        self._stacks = read_stack_log(self._path, self._unread)
        for tag, value, stack_id in ((one.tag, one.size, one.stack_id) for one in self._stacks.allocations):
            try:
                self.entries.add(LoggedEntry(tag, round(value * MIB), alloc_index=None, stack_id=stack_id))
            except ValueError as error:
                self._unread.add(f"{self._path.name}: {shown(tag)}: {error}")

    def _rows(self, read_row: Any) -> None:
        lines = self._lines()
        _, header = next(lines, (0, ""))
        for number, text in lines:
            if text == header:
                rows = sum(1 for _ in lines)
                self._bad(number, text, f"a second table; its {rows:,} rows would count the same memory again")
                return
            try:
                read_row(text)
            except ValueError as error:
                self._bad(number, text, str(error))

    def _seven(self, text: str) -> None:
        time_s, _, rest = text.partition(",")
        middle, *numbers = rest.rsplit(",", 3)
        requested, actual, reuse = (_integer(number) for number in _exactly(numbers, 3))
        parts = middle.strip().removeprefix('"').removesuffix('"').split('","' if '","' in middle else ",")
        if len(parts) < 3:
            raise ValueError("expected seven columns")
        scope, name, struct = parts[0], '","'.join(parts[1:-1]), parts[-1].strip()
        if reuse:
            self._reused[0] += 1
            self._reused[1] += max(actual, 0)
            return
        moment = _real(time_s.strip('" '))
        tag = f"{scope}{name}" if not scope or scope.endswith(":") else f"{scope}:{name}"
        entry = LoggedEntry(
            tag,
            requested,
            allocated_bytes=actual,
            category=CATEGORY_OF_STRUCT.get(struct, "other"),
            module=module_of(tag),
            alloc_index=None,
            time_ns=None if moment is None or moment > 1 << 33 else round(moment * 1e9),
        )
        self.entries.add(entry)

    def _five(self, text: str) -> None:
        tag, *numbers = text.rsplit(",", 4)
        requested, device_idx, actual, _reuse = (_integer(number) for number in _exactly(numbers, 4))
        if not 0 <= device_idx < MAX_DEVICE:
            raise ValueError(f"invalid device number {device_idx:,}")
        tag = unquoted(tag)
        if tag == AMEND:
            self._amend_bytes[device_idx] = requested
            return
        if not tag:
            raise ValueError("the name is missing")
        entry = LoggedEntry(
            tag,
            requested,
            allocated_bytes=actual,
            category=category_of(tag),
            module=module_of(tag),
            device_idx=device_idx,
        )
        self.entries.add(entry)

    def _tree(self) -> None:
        for device_idx, tag, value in leaves(self._path):
            try:
                if not value.is_integer():
                    raise ValueError(f"{value:g} bytes is out of range")
                if tag == AMEND:
                    self._amend_bytes[device_idx] = int(value)
                    continue
                category, module = category_of(tag), module_of(tag)
                self.entries.add(LoggedEntry(tag, int(value), category=category, module=module, device_idx=device_idx))
            except (ValueError, OverflowError) as error:
                self._unread.add(f"{self._path.name}: {shown(tag)}: {error}")

    # -- the rank -------------------------------------------------------------------------------------------------

    def rank(self, number: int) -> ImportedRank:
        """Return the data as rank ``number``."""
        held = self.entries.bytes_by_device()
        known = {device: amend for device, amend in self._amend_bytes.items() if 0 <= amend < 1 << 62}
        readings = [
            one_reading(self.entries, device, held.get(device, 0) + amend, pid=max(_pid(self._path), 0))
            for device, amend in sorted(known.items())
        ]
        devices = [{"device_idx": device, "name": "", "total_bytes": None} for device in sorted({*held, *known})]
        facts: dict[str, Any] = {"devices": devices}
        if _pid(self._path) >= 0:
            facts["pid"] = _pid(self._path)
        tables = {**self.entries.tables(), **reading_tables(readings)}
        if self._stacks.stacks:
            tables["stacks"] = stack_table(self._stacks.stacks)
        return ImportedRank(number, tables, facts, self._notes(known))

    def _notes(self, known: dict[int, int]) -> tuple[str, ...]:
        notes = [_ABOUT[self._form], "The file has no times, steps or phases."]
        if self._form is Form.SEVEN_COLUMNS:
            notes = [_ABOUT[self._form]]
        if self._log_name:
            count = len(self._stacks.allocations)
            notes.append(f"{self._log_name} has the call stacks of {count:,} allocations with an unknown tag.")
        if self._was_bytes:
            notes.append(
                "Sizes were read as bytes, as MXNet's earliest version writes them: they are too large to be MiB."
            )
        if self._reused[0]:
            count, size = self._reused
            rows = "1 row" if count == 1 else f"{count:,} rows"
            notes.append(f"{rows} ({size:,} bytes) reused memory of the pool: not counted again.")
        if known:
            notes.append(
                "The GPU's memory is what the driver reported for this process. nvml_amend is the unaccounted memory."
            )
        if len(known) < len(self._amend_bytes):
            notes.append(
                "nvml_amend is negative and ignored: the driver reported less memory than the sum of the entries."
            )
        return tuple(notes)


_ABOUT = {
    Form.HEADERLESS: "The file lists allocations but no frees, so the sum includes everything ever allocated.",
    Form.SEVEN_COLUMNS: "The file lists allocations but no frees, so the sum includes everything ever allocated.",
    Form.FIVE_COLUMNS: "The file shows the memory in use when it was written, which may not be the peak.",
    Form.TREE: "The file shows the memory in use when it was written, which may not be the peak.",
    Form.STACK_LOG: "The log lists only allocations with an unknown tag. The CSV file beside it has the others.",
}


def unquoted(text: str) -> str:
    """Return a field without its quotes. A doubled quote inside is one quote; others were never escaped and stay."""
    text = text.strip()
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    inner = text[1:-1]
    return inner.replace('""', '"') if '"' not in inner.replace('""', "") else inner


def _extremes(sizes: Iterator[float | None]) -> tuple[float, ...]:
    """Return the largest size, and one that is not a whole number if there is one."""
    largest, broken = -1.0, -1.0
    for size in sizes:
        if size is not None:
            largest = max(largest, size)
            broken = broken if size.is_integer() else size
    return tuple(size for size in (largest, broken) if size >= 0)


def _exactly(fields: list[str], count: int) -> list[str]:
    if len(fields) != count:
        raise ValueError(f"expected at least {count + 1} columns")
    return fields


def _integer(text: str) -> int:
    plain = text.strip().strip('"').strip()
    if not _INTEGER.match(plain):
        raise ValueError("a column is not a number")
    return int(plain)


def _real(text: str) -> float | None:
    """Return a size or a time; None if it is not a number, is negative, or infinite."""
    try:
        value = float(text.strip().strip('"'))
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
