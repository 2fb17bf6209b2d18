"""The columns of nvidia-smi's CSV: names in a header, meaning of a cell, and columns of a file without header."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

UNKNOWN = "unknown"
_MIB = float(1 << 20)
_FACTORS = {
    "B": 1.0, "KiB": 1024.0, "MiB": _MIB, "GiB": 1024.0 * _MIB, "KB": 1e3, "MB": 1e6, "GB": 1e9,
    "mW": 1e-3, "W": 1.0, "%": 0.01, "MHz": 1.0, "GHz": 1e3, "C": 1.0,
}  # fmt: skip
"""Unit -> factor to the unit of the run's column: bytes, W, fraction, MHz, °C."""

FIELDS = {
    "timestamp": ("t_ns", ""),
    "index": ("index", ""),
    "uuid": ("uuid", ""),
    "gpu_uuid": ("uuid", ""),
    "name": ("name", ""),
    "gpu_name": ("name", ""),
    "pci.bus_id": ("bus_id", ""),
    "gpu_bus_id": ("bus_id", ""),
    "serial": ("serial", ""),
    "gpu_serial": ("serial", ""),
    "driver_version": ("driver_version", ""),
    "memory.used": ("used_bytes", "MiB"),
    "memory.free": ("free_bytes", "MiB"),
    "memory.total": ("total_bytes", "MiB"),
    "memory.reserved": ("driver_bytes", "MiB"),
    "power.draw": ("power_average_w", "W"),
    "power.draw.average": ("power_average_w", "W"),
    "power.draw.instant": ("power_instant_w", "W"),
    "utilization.gpu": ("utilization_frac", "%"),
    "clocks.sm": ("sm_clock_mhz", "MHz"),
    "clocks.current.sm": ("sm_clock_mhz", "MHz"),
    "temperature.gpu": ("temperature_c", "C"),
    "clocks_throttle_reasons.active": ("throttle", ""),
    "clocks_event_reasons.active": ("throttle", ""),
}
"""nvidia-smi's column name -> name in a run, and the unit that --format=nounits omits."""

_FAMILIES = (
    "memory.",
    "power.",
    "utilization.",
    "clocks.",
    "temperature.",
    "pcie.",
    "pci.",
    "ecc.",
    "fan.",
    "encoder.",
)

_GUESSED_BY_UNIT = {"MiB": "memory.used", "W": "power.draw", "%": "utilization.gpu", "MHz": "clocks.sm"}
_WHOLE = frozenset(
    {"index", "sm_clock_mhz", "temperature_c", "used_bytes", "free_bytes", "total_bytes", "driver_bytes"}
)
_INT64, _INT32, _LEAST_C = (1 << 63) - 1, (1 << 31) - 1, -273
_LARGEST = {"index": _INT32, "sm_clock_mhz": _INT32, "temperature_c": _INT32}
_TEXTS = frozenset({"uuid", "name", "bus_id", "serial", "driver_version"})
_MISSING = re.compile(r"\[.*\]?|N/A|ERR!|Unknown Error|Not Supported|")
_NUMBER = re.compile(r"([-+]?[0-9]+(?:[.,][0-9]+)?)\s*([a-zA-Z%]*)", re.ASCII)
_HEADER_CELL = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*)(?:\s*\[([^\]]*)\])?", re.ASCII)
_TIME = re.compile(r"(\d{4})[/-](\d\d)[/-](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?", re.ASCII)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{8,}.*")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")


@dataclass(frozen=True)
class Field:
    """One column: nvidia-smi's name, the name in a run, and the default unit."""

    name: str
    kind: str
    unit: str = ""
    has_unit: bool = False

    @classmethod
    def named(cls, name: str, unit: str = "") -> Field:
        """Return the column that nvidia-smi calls ``name``."""
        kind, own_unit = FIELDS.get(name, (UNKNOWN, ""))
        return cls(name, kind, unit if unit in _FACTORS else own_unit, bool(unit))


def separator_of(line: str) -> str:
    """Return the separator of the cells. nvidia-smi writes a comma and a space, so a decimal comma is no separator."""
    if ";" in line:
        return ";"
    return ", " if re.search(r",\s", line) else ","


def cells_of(line: str, separator: str) -> list[str]:
    """Return the cells of a line."""
    parts = re.split(r",(?:\s+|$)", line.strip()) if separator == ", " else line.split(separator)
    return [part.strip().strip('"').strip() for part in parts]


def is_header(line: str) -> bool:
    """Return whether a line is a header: each cell looks like a column name, and one is a known name."""
    if not line.lstrip(' "')[:1].islower():
        return False
    cells = cells_of(line, ";" if ";" in line else ",")
    names = [_HEADER_CELL.fullmatch(cell) for cell in cells]
    return all(names) and any(name[1] in FIELDS or name[1].startswith(_FAMILIES) for name in names if name)


def fields_of_header(line: str) -> tuple[Field, ...]:
    """Return the columns that a header names."""
    found = (_HEADER_CELL.fullmatch(cell) for cell in cells_of(line, ";" if ";" in line else ","))
    return tuple(Field.named(match[1], match[2] or "") if match else Field("", UNKNOWN) for match in found)


def guess_fields(cells: list[str]) -> tuple[Field, ...]:
    """Return the columns of a file without header, from units and formats of its first cells.

    Of two columns with the same unit, the first is used. A single number without unit is ``memory.used``, as in the
    oldest logs.
    """
    fields: list[Field] = []
    for cell in cells:
        field = _guess(cell)
        taken = field.kind != UNKNOWN and any(field.kind == one.kind for one in fields)
        fields.append(Field("", UNKNOWN) if taken else field)
    lone = [number for number, cell in enumerate(cells) if _NUMBER.fullmatch(cell)]
    if len(lone) == 1 and fields[lone[0]].kind == UNKNOWN:
        fields[lone[0]] = Field.named("memory.used")
    return tuple(fields)


def _guess(cell: str) -> Field:
    for form, name in ((_TIME, "timestamp"), (_UUID, "uuid"), (_BUS, "pci.bus_id")):
        if form.fullmatch(cell):
            return Field.named(name)
    number = _NUMBER.fullmatch(cell)
    if number and number[2] in _GUESSED_BY_UNIT:
        return Field.named(_GUESSED_BY_UNIT[number[2]], number[2])
    if re.fullmatch(r"0x[0-9a-fA-F]{16}", cell):
        return Field.named("clocks_event_reasons.active")
    is_name = number is None and re.match(r"(NVIDIA|Tesla|Quadro|GeForce|GRID|RTX|TITAN)\b", cell)
    return Field.named("name") if is_name else Field("", UNKNOWN)


@functools.lru_cache(maxsize=65_536)
def parse_cell(field: Field, cell: str) -> Any:
    """Return the value of a cell in the run's unit; None if nvidia-smi reports no value.

    Raises:
        ValueError: it is not a value of this column.
    """
    if field.kind == UNKNOWN or _MISSING.fullmatch(cell):
        return None
    if field.kind in _TEXTS:
        return cell
    value = _number_of(field, cell)
    if not (_LEAST_C if field.kind == "temperature_c" else 0) <= value <= _LARGEST.get(field.kind, _INT64):
        raise ValueError(cell)
    return value


def _number_of(field: Field, cell: str) -> float:
    if field.kind == "t_ns":
        return _time_ns(cell)
    if field.kind == "throttle":
        return int(cell, 16) if cell.lower().startswith("0x") else int(cell)
    number = _NUMBER.fullmatch(cell)
    if number is None or (field.has_unit and not field.unit):
        raise ValueError(cell)
    unit = number[2] or field.unit
    if unit and unit not in _FACTORS:
        raise ValueError(cell)
    value = float(number[1].replace(",", ".")) * _FACTORS.get(unit, 1.0)
    return round(value) if field.kind in _WHOLE else value


def _time_ns(cell: str) -> int:
    found = _TIME.fullmatch(cell)
    if found is None:
        raise ValueError(cell)
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + int((found[7] or "").ljust(9, "0"))
