"""The one place that turns bytes, times, shares, signals and lists of ranks into text, and text back. GiB is 2^30."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence

from gpuledger.errors import UsageError

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 10**9, "min": 60 * 10**9, "h": 3_600 * 10**9}
_JOULE_UNITS_J = {"µJ": 1e-6, "mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3.6e3, "kWh": 3.6e6}
_PARSED_BYTES = {
    "": 1, "B": 1,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "PIB": 1 << 50,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Zµμ]*)\s*", re.ASCII)
_LARGEST = 1 << 62
MOST_NAMED = 8
"""Number of ranks that a sentence names one by one."""
MISSING = "n/a"
DASH = "–"
"""What stands in a table in place of an unknown value."""


def format_bytes(value_bytes: float | None, decimals: int = 1) -> str:
    """Return bytes as text in the largest binary unit below them, ``71.2 GiB``; ``n/a`` for None."""
    if value_bytes is None:
        return MISSING
    size, unit = abs(float(value_bytes)), 0
    while unit + 1 < len(_BYTE_UNITS) and round(size, decimals if unit else 0) >= 1024:
        size, unit = size / 1024, unit + 1
    sign = "-" if value_bytes < 0 else ""
    return f"{sign}{size:.{decimals if unit else 0}f} {_BYTE_UNITS[unit]}"


def format_ns(value_ns: float | None, half_ns: float | None = None) -> str:
    """Return nanoseconds as text with three or four significant digits, ``17.84 ms``; ``n/a`` for None.

    With ``half_ns``, half an interval, both have the unit of the value: ``17.84 ± 0.20 ms``.
    """
    if value_ns is None:
        return MISSING
    size = abs(float(value_ns))
    below = {"ns": 1_000, "µs": 1_000, "ms": 1_000, "s": 120, "min": 120}
    unit = next((unit for unit, most in below.items() if round(size / _TIME_UNITS_NS[unit], 2) < most), "h")
    return _in_unit(value_ns, half_ns, unit, _TIME_UNITS_NS[unit], 0 if unit == "ns" else 2)


def format_seconds(value_s: float | None, half_s: float | None = None) -> str:
    """Return seconds as text, as :func:`format_ns` does; ``0 s`` for none."""
    if value_s == 0 and half_s is None:
        return "0 s"
    return format_ns(None if value_s is None else value_s * 1e9, None if half_s is None else half_s * 1e9)


def format_joules(value_j: float | None, half_j: float | None = None) -> str:
    """Return joules as text with three or four significant digits, ``251.00 J``, ``3.20 kJ``; ``n/a`` for None.

    With ``half_j``, half an interval, both have the unit of the value: ``1.600 ± 0.007 J``.
    """
    if value_j is None:
        return MISSING
    size = abs(float(value_j))
    unit = next((unit for unit in ("µJ", "mJ", "J", "kJ") if round(size / _JOULE_UNITS_J[unit], 2) < 1_000), "MJ")
    return _in_unit(value_j, half_j, unit, _JOULE_UNITS_J[unit], 2)


def _in_unit(value: float, half: float | None, unit: str, factor: float, decimals: int) -> str:
    """Return an amount in a unit, with decimals of which the last that ``half`` needs is the last."""
    if half is None:
        return f"{value / factor:.{decimals}f} {unit}"
    shown = decimals_for(half / factor, decimals)
    return f"{value / factor:.{shown}f} ± {half / factor:.{shown}f} {unit}"


def decimals_for(half: float, least: int) -> int:
    """Return how many decimals show a digit of ``half``, and at least ``least``; that many if six show none."""
    return next((decimals for decimals in range(least, 7) if abs(half) * 10**decimals >= 1), least)


def format_frac(value_frac: float | None, decimals: int = 1) -> str:
    """Return a share between 0 and 1 as text, ``88.4 %``; ``n/a`` for None."""
    return MISSING if value_frac is None else f"{value_frac * 100:.{decimals}f} %"


def device_label(device_idx: int) -> str:
    """Return ``cuda:0``, or ``cpu`` for -1."""
    return "cpu" if device_idx < 0 else f"cuda:{device_idx}"


def counted(number: int, noun: str) -> str:
    """Return a number of things: ``1 operator``, ``1,204 operators``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def share_frac(part: float | None, whole: float | None) -> float | None:
    """Return ``part / whole``; None where either is missing or the whole is nothing."""
    return part / whole if part is not None and whole else None


def parse_bytes(text: str) -> int:
    """Return the bytes that ``71.2 GiB``, ``80GB`` (10^9), ``512`` or ``2.5MiB`` mean.

    Raises:
        UsageError: ``text`` is not a size.
    """
    number, unit = _split(text, "a size", "For example 512, 20MiB or 80GB")
    factor = _PARSED_BYTES.get(unit.upper())
    if factor is None:
        raise UsageError(f"{text}: unknown unit {unit}", hint="Use B, KiB, MiB, GiB, TiB, or KB, MB, GB, TB")
    return _whole(text, number * factor)


def parse_memory(text: str) -> int:
    """Return the bytes of a GPU's memory, such as ``24GiB``. Without a unit, the number is in bytes.

    Raises:
        UsageError: ``text`` is not a size, or is less than 1 MiB without a unit: ``24`` is not meant to be 24 bytes.
    """
    size_bytes = parse_bytes(text)
    if size_bytes < 2**20 and not _split(text, "a size", "")[1]:
        raise UsageError(f"{text}: a unit is missing", hint="For example 24GiB")
    return size_bytes


def parse_duration_ns(text: str) -> int:
    """Return the nanoseconds that ``1.5s``, ``350ms``, ``20us`` or ``2min`` mean; a unit is needed.

    Raises:
        UsageError: ``text`` is not a duration.
    """
    number, unit = _split(text, "a time", "For example 1.5s or 350ms")
    factor = _TIME_UNITS_NS.get(unit.replace("μ", "µ").lower())
    if factor is None:
        named = f"unknown unit {unit}" if unit else "a unit is missing"
        raise UsageError(f"{text}: {named}", hint="Use ns, us, ms, s, min or h, for example 1.5s")
    return _whole(text, number * factor)


def parse_joules(text: str) -> float:
    """Return the joules that ``251 J``, ``3.2kJ``, ``80mJ`` or ``2 Wh`` mean; a unit is needed.

    Raises:
        UsageError: ``text`` is not an energy.
    """
    number, unit = _split(text, "an energy", "For example 251J or 3.2kJ")
    factor = _JOULE_UNITS_J.get(unit)
    if factor is None:
        named = f"unknown unit {unit}" if unit else "a unit is missing"
        raise UsageError(f"{text}: {named}", hint="Use µJ, mJ, J, kJ, MJ, Wh or kWh, for example 251J")
    return number * factor


def parse_frac(text: str) -> float:
    """Return the share that ``90%`` or ``0.9`` means.

    Raises:
        UsageError: ``text`` is not a share.
    """
    number, _, rest = text.partition("%")
    if rest.strip():
        raise UsageError(f"{text!r}: expected a percentage or a fraction", hint="For example 5% or 0.05")
    value, unit = _split(number, "a percentage or a fraction", "For example 5% or 0.05")
    if unit:
        raise UsageError(f"{text}: unknown unit {unit}", hint="For example 5% or 0.05")
    return value / 100 if "%" in text else value


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r}: expected {what}", hint=example)
    return float(found[1]), found[2]


def _whole(text: str, value: float) -> int:
    if not math.isfinite(value) or value > _LARGEST:
        raise UsageError(f"{text}: too large")
    return round(value)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGTERM; ``signal 40`` for one without a name."""
    return {int(one): one.name for one in signal.Signals}.get(number, f"signal {number}")


def name_ranks(numbers: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 1 and 2``, or the first ranks and how many more there are."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > MOST_NAMED:
        return f"ranks {', '.join(map(str, numbers[:MOST_NAMED]))} and {len(numbers) - MOST_NAMED} more"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
