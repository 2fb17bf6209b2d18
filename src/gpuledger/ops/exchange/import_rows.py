"""Import result rows printed by ml-operator-profiling as records of the database.

Its datasets are pickles of modules, which are not read. Each layer is replaced by the operators that it runs on a
simulated GPU; whole models are stored under their name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.errors import InputError
from gpuledger.files.reading import MIB, read_limited, reading
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.database.whole_models import WholeModel
from gpuledger.ops.exchange.printed_layers import LayerReader
from gpuledger.ops.exchange.printed_lines import Figures, FileRow, Hardware, UnreadLine, is_time, parse_lines
from gpuledger.ops.totals.near_keys import SOURCE
from gpuledger.ops.workloads.captures import device_named
from gpuledger.units import counted

LARGEST_BYTES = 64 * MIB
METHOD = {"mode": "hot", "how": "eager", "source": SOURCE, "value": "mean of blocks"}
BACKWARD, SHARE = "forward and backward less forward", "share of forward and backward less forward"
NOT_LONGER = "its training takes no longer than its inference"
SIGMAS = 1.96
"""Half width of the 95 % interval of a normal distribution, in standard deviations."""
FLOP_PER_BYTE = 16.0
"""A backward pass with several operators is divided by bytes, or by FLOPs for operators above this ratio."""


@dataclass(frozen=True)
class RowSettings:
    """Settings that the user gives for all rows; None if they are in the rows or the file's name."""

    tf32: bool | None = None
    clock_mhz: int | None = None


@dataclass(frozen=True)
class ImportedRows:
    """Contents of the imported rows.

    Attributes:
        keys: Keys of operators and whole models.
        environments: One for each configuration of the GPU.
        records: The measurements.
        rows: Number of rows with records.
        unread: Each line without a record, and the reason.
        notes: Assumptions.
    """

    keys: tuple[OperatorKey, ...]
    environments: tuple[Environment, ...]
    records: tuple[Record, ...]
    rows: int
    unread: tuple[UnreadLine, ...]
    notes: tuple[str, ...]


def read_rows(paths: Iterable[Path], card: str, settings: RowSettings | None = None) -> ImportedRows:
    """Return the records in files of printed rows.

    Args:
        paths: The files. A folder selects the files in it.
        card: The GPU of the measurements, which is not in the rows.
        settings: Other settings of all rows.

    Raises:
        InputError: the only file cannot be read, or a folder is empty.
    """
    rows: list[FileRow] = []
    unread: list[UnreadLine] = []
    files = [file for path in paths for file in _files_in(path)]
    for path in files:
        try:
            text = _text_of(path)
        except InputError as error:
            if len(files) == 1:
                raise
            unread.append(UnreadLine(str(path), 1, error.message.removeprefix(f"{path}: "), ""))
            continue
        found, left = parse_lines(str(path), text.splitlines())
        rows += found
        unread += left
    taker = _Taker(card, settings or RowSettings())
    with device_named("h200", lambda _sentence: None) as place:
        layers = LayerReader(place)
        for row in rows:
            try:
                with reading("row", ""):
                    taker.take(row, layers)
            except InputError as error:
                reason = error.message.removeprefix("row: ")
                unread.append(UnreadLine(row.path, row.line, reason, f"{row.what} {row.size}"))
    return taker.taken(unread)


def _text_of(path: Path) -> str:
    """Return a file's text. Bytes that are not UTF-8, as in warnings of libraries, are escaped with backslashes.

    Raises:
        InputError: it cannot be read, is too large, or is not text.
    """
    with reading(path):
        content = read_limited(path, LARGEST_BYTES)
    if b"\0" in content:
        raise InputError(f"{path}: not a text file")
    return content.decode("utf-8-sig", "backslashreplace").replace("\r\n", "\n")


def _files_in(path: Path) -> list[Path]:
    """Return the files of a folder by name, or the path of a file.

    Raises:
        InputError: a folder without a file.
    """
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if not found:
        raise InputError(f"{path}: no file in this folder", hint="Give the output of the tool's scripts")
    return found


class _Taker:
    """Converts rows to records."""

    def __init__(self, card: str, settings: RowSettings) -> None:
        self._card = card
        self._settings = settings
        self._keys: dict[str, OperatorKey] = {}
        self._environments: dict[str, Environment] = {}
        self._records: list[Record] = []
        self._rows = 0
        self._guessed = 0

    def taken(self, unread: Sequence[UnreadLine]) -> ImportedRows:
        """Return all records so far, with the lines that could not be read."""
        notes = []
        if self._guessed:
            rows = counted(self._guessed, "row")
            notes.append(f"{rows}: nothing says whether TF32 was on, so it counts as on; --tf32 off if it was not")
        return ImportedRows(
            tuple(self._keys.values()), tuple(self._environments.values()), tuple(self._records), self._rows,
            tuple(sorted(unread, key=lambda one: (one.path, one.line))), tuple(notes),
        )  # fmt: skip

    def take(self, row: FileRow, layers: LayerReader) -> None:
        """Add a row's records; ValueError if it has none."""
        environment = self._environment_of(row.hardware)
        if row.mode is not None:
            self._add(WholeModel(f"torchvision:{row.what}", row.size, row.mode).key, row, row.figures, environment)
        else:
            self._take_layer(row, layers, environment)
        self._environments[environment.digest] = environment
        self._rows += 1
        self._guessed += self._settings.tf32 is None and row.hardware.tf32 is None

    def _take_layer(self, row: FileRow, layers: LayerReader, environment: Environment) -> None:
        found = layers.operators(row.what, row.size, is_evaluated=row.is_evaluated)
        keys = [self._by_setting(key, environment) for key in (found.forward, *found.backward)]
        if row.training is None or not found.backward:
            self._add(keys[0], row, row.figures, environment)
            return
        backward = less(row.training, row.figures)
        if backward is None:
            raise ValueError(NOT_LONGER)
        self._add(keys[0], row, row.figures, environment)
        shares = shares_of(keys[1:])
        words = BACKWARD if len(shares) == 1 else SHARE
        for key, share in dict(zip(keys[1:], shares, strict=True)).items():
            self._add(key, row, share_of(backward, share), environment, words)

    def _environment_of(self, hardware: Hardware) -> Environment:
        tf32 = hardware.tf32 if self._settings.tf32 is None else self._settings.tf32
        clock_mhz = self._settings.clock_mhz or hardware.clock_mhz
        flags: dict[str, Any] = {"source": SOURCE}
        if tf32 is False:
            flags["tf32"] = False
        if clock_mhz is not None:
            flags["clock_mhz"] = clock_mhz
        if hardware.memory_clock_mhz is not None:
            flags["memory_clock_mhz"] = hardware.memory_clock_mhz
        return Environment(self._card, None, "unknown", None, flags)

    @staticmethod
    def _by_setting(key: OperatorKey, environment: Environment) -> OperatorKey:
        if environment.flags.get("tf32", True) or not key.flags.get("tf32"):
            return key
        return OperatorKey(key.operator, key.inputs, {**key.flags, "tf32": False})

    def _add(
        self, key: OperatorKey, row: FileRow, figures: Figures, environment: Environment, value: str = METHOD["value"]
    ) -> None:
        self._keys[key.digest] = key
        place = {} if row.started_ns else {"row": f"{Path(row.path).name}:{row.line}"}
        time_ns, half_ns = figures.time_s * 1e9, _half(figures.time_std_s, 1e9)
        energy_j = None if figures.energy_mj is None else figures.energy_mj / 1e3
        half_j = None if energy_j is None else _half(figures.energy_std_mj, 1e-3)
        self._records.append(
            Record(
                key.digest,
                environment.digest,
                {**METHOD, "value": value, **place},
                time_median_ns=time_ns,
                time_low_ns=None if half_ns is None else max(time_ns - half_ns, 0.0),
                time_high_ns=None if half_ns is None else time_ns + half_ns,
                energy_median_j=energy_j,
                energy_low_j=None if energy_j is None or half_j is None else max(energy_j - half_j, 0.0),
                energy_high_j=None if energy_j is None or half_j is None else energy_j + half_j,
                blocks=(_block_of(figures),),
                measured_ns=row.started_ns or 0,
            )
        )


def _half(std: float | None, unit: float) -> float | None:
    return None if std is None else SIGMAS * std * unit


def _block_of(figures: Figures) -> dict[str, Any]:
    """Return a row's remaining figures, without the missing ones."""
    values = {
        "time_std_ns": None if figures.time_std_s is None else figures.time_std_s * 1e9,
        "energy_std_j": None if figures.energy_std_mj is None else figures.energy_std_mj / 1e3,
        "iterations": figures.iterations,
        "runtime_s": figures.runtime_s,
        "power_w": figures.power_w,
        "power_std_w": figures.power_std_w,
    }
    return {name: value for name, value in values.items() if value is not None}


def less(whole: Figures, part: Figures) -> Figures | None:
    """Return the difference of two measurements; None if its time is not positive."""
    time_s = whole.time_s - part.time_s
    if not is_time(time_s):
        return None
    energy_mj = None
    if whole.energy_mj is not None and part.energy_mj is not None and whole.energy_mj > part.energy_mj:
        energy_mj = whole.energy_mj - part.energy_mj
    return Figures(
        time_s,
        _joined(whole.time_std_s, part.time_std_s),
        energy_mj,
        None if energy_mj is None else _joined(whole.energy_std_mj, part.energy_std_mj),
    )


def _joined(one: float | None, other: float | None) -> float | None:
    """Return the standard deviation of a difference."""
    return None if one is None or other is None else float((one * one + other * other) ** 0.5)


def shares_of(keys: Sequence[OperatorKey]) -> list[float]:
    """Return the share of each operator in the expected time of all of them; the shares sum to 1."""
    works = [work_of(key) for key in keys]
    weights = [max(work.flops / FLOP_PER_BYTE, float(work.bytes), 1.0) for work in works]
    return [weight / sum(weights) for weight in weights]


def share_of(figures: Figures, share: float) -> Figures:
    """Return a measurement's figures multiplied by a share."""
    if share == 1:
        return figures
    scaled = {
        name: None if (value := getattr(figures, name)) is None else value * share
        for name in ("time_std_s", "energy_mj", "energy_std_mj")
    }
    return replace(figures, time_s=figures.time_s * share, **scaled)
