"""Values and positions as text, the same in every text view."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

from gpuledger.analyze.memory.groups import module_label
from gpuledger.report.base.terminal import BOLD, MISSING, Terminal
from gpuledger.units import (
    counted,
    device_label,
    format_bytes,
    format_frac,
    format_joules,
    format_ns,
    parse_bytes,
    share_frac,
)

if TYPE_CHECKING:
    from gpuledger.analyze.memory.instant import Instant
    from gpuledger.analyze.step.overhead import Overhead
    from gpuledger.model.manifest import RankManifest
    from gpuledger.model.run_manifest import RunManifest

_LABEL_CELLS = 8


def rate(per_second: float) -> str:
    """Return a count per second: ``1,234``, or ``3.4`` below 100."""
    return f"{per_second:,.1f}" if per_second < 100 else f"{per_second:,.0f}"


HOST_PARTS = {"between": "other operators", "idle": "outside operators"}
"""Part of a step -> its label if the times are those of operators on the CPU."""


def percent(part: float | None, whole: float | None) -> str:
    """Return a share in running text: ``51 %``, ``3.4 %``, ``< 0.1 %``; a dash if unknown."""
    fraction = share_frac(part, whole)
    return format_frac(fraction, 0) if fraction is not None and abs(fraction) >= 0.0995 else share(part, whole)


def share(part: float | None, whole: float | None) -> str:
    """Return a share for a column, always with one decimal: ``51.0 %``, ``< 0.1 %``; a dash if unknown."""
    fraction = share_frac(part, whole)
    if fraction is None:
        return MISSING
    return "< 0.1 %" if 0 < fraction < 0.0005 else format_frac(fraction)


@dataclass(frozen=True)
class Unit:
    """One unit for a whole column, so that its values can be compared and added."""

    name: str
    bytes: int
    decimals: int = 1

    def amount(self, value_bytes: int | None) -> str:
        """Return bytes in this unit, ``72,908.8``; ``< 0.1`` for small values, a dash if unknown."""
        if value_bytes is None:
            return MISSING
        if self.bytes == 1:
            return f"{value_bytes:,}"
        least = 10**-self.decimals
        if 0 < abs(value_bytes) < self.bytes * least / 2:
            return f"< {least:.{self.decimals}f}" if value_bytes > 0 else f"> -{least:.{self.decimals}f}"
        return f"{value_bytes / self.bytes:,.{self.decimals}f}"


MOST_DECIMALS = 3


def column_unit(total_bytes: int, shown_bytes: int | None = None) -> Unit:
    """Return the unit in which :func:`format_bytes` writes ``total_bytes``, for a whole column.

    It has one to three decimals, so that ``shown_bytes`` has four digits, or the total without ``shown_bytes``.
    """
    name = format_bytes(total_bytes).split(" ")[1]
    unit_bytes = parse_bytes(f"1 {name}")
    digits = len(str(int(abs(total_bytes if shown_bytes is None else shown_bytes) / unit_bytes)))
    return Unit(name, unit_bytes, min(max(4 - digits, 1), MOST_DECIMALS))


def of_capacity(value_bytes: int, capacity_bytes: int | None) -> str:
    """Return ``71.2 GiB of 139.8 (51 %)``; an equal unit is printed once."""
    value = format_bytes(value_bytes)
    if not capacity_bytes:
        return value
    number, unit = format_bytes(capacity_bytes).split(" ")
    whole = number if value.endswith(f" {unit}") else f"{number} {unit}"
    return f"{value} of {whole} ({percent(value_bytes, capacity_bytes)})"


def device_text(device_idx: int, device_name: str, rank: int | None = None) -> str:
    """Return ``cuda:0 NVIDIA H200``, or ``CPU tensors``, with the rank if there is one of several."""
    label = device_label(device_idx)
    device = " ".join(dict.fromkeys(part for part in (label, device_name) if part))
    return ("CPU tensors" if device_idx < 0 else device) + ("" if rank is None else f" of rank {rank}")


def instant_title(instant: Instant, step: int | None = None) -> str:
    """Return the label of what is allocated at an instant: ``Peak memory``, ``Memory at 1.5s``."""
    if instant.label == "peak":
        return f"Peak of step {step}" if step else "Peak memory"
    return "Memory at the end" if instant.label == "end" else f"Memory at {instant.label}"


def place_text(instant: Instant, classes: Mapping[str, str] | None = None) -> str:
    """Return the position in the program: ``in step 2, backward of layers.31.mlp``, ``at fit.py:7``; "" if unknown."""
    module = f"of {module_label(instant.module, classes or {})}" if instant.module else ""
    phase = {"between": "between phases"}.get(instant.phase, instant.phase)
    doing = " ".join(part for part in (phase, module) if part)
    parts = [part for part in (f"step {instant.step}" if instant.step else "", doing.removeprefix("of ")) if part]
    where = [f"in {', '.join(parts)}" if parts else "", f"at {instant.line}" if instant.line else ""]
    return ", ".join(part for part in where if part)


def allocated_text(
    allocated_bytes: int, instant: Instant, device: str, classes: Mapping[str, str] | None = None
) -> str:
    """Return allocated memory, device and position: ``2.1 GiB on cuda:0 NVIDIA H200, in step 2, backward``."""
    size = f"{format_bytes(allocated_bytes)} {'of' if instant.device_idx < 0 else 'on'} {device}"
    return ", ".join(part for part in (size, place_text(instant, classes)) if part)


def place_of(instant: Instant) -> str:
    """Return the position in the program: ``step 2 · backward · layers.31.mlp``."""
    step = f"step {instant.step}" if instant.step else ""
    return " · ".join(part for part in (step, instant.phase, instant.module, instant.line) if part)


def failure_text(manifest: RunManifest, rank: RankManifest, *, is_only: bool) -> str:
    """Return how a program failed: ``with exit status 1 (ValueError) after 5 steps``; "" if it did not, or if unknown.

    With several ranks, not only ``rank``, the status can come from the exception of another one, so none is named.
    """
    if not manifest.failure:
        return ""
    error = f"({rank.exit_error})" if rank.exit_error and is_only and not manifest.signal else ""
    return " ".join(text for text in ("with", manifest.failure, error, after_steps(rank)) if text)


def after_steps(rank: RankManifest) -> str:
    """Return after which step a process ended: ``after 5 steps``; "" if that is unknown.

    Nothing counts the last steps of a process that is killed.
    """
    least = "" if rank.has_all_steps else "at least "
    return f"after {least}{counted(rank.steps_seen, 'step')}" if rank.steps_seen else ""


def entry(terminal: Terminal, label: str, *texts: str, cells: int | None = None) -> list[str]:
    """Return ``texts`` after a label in bold, each on its own line. Lines are wrapped at spaces.

    They begin at column ``cells``, by default right after the label. On a narrow terminal they are below the label.
    """
    cells = len(label) + 2 if cells is None else cells
    is_narrow = terminal.width_cells is not None and terminal.width_cells < 3 * cells
    indent = 2 if is_narrow else cells
    room = None if terminal.width_cells is None else max(terminal.width_cells - indent, 8)
    lines = [label] if is_narrow and texts else []
    for text in texts:
        words = [word if room is None else terminal.shortened(word, room) for word in _words(terminal.text(text))]
        start = " " * indent if lines else f"{label:<{cells}}"
        lines += terminal.wrapped([start + words[0], *words[1:]], indent, " ")
    return [terminal.styled(label, BOLD) + lines[0][len(label) :], *lines[1:]] if lines else []


MISSING_OR_FAILED = "Missing or failed"
"""Label of what went wrong on some ranks."""
_UNIT = re.compile(r"([KMGTP]i)?B|ns|[µum]?s|min|h|[µumkM]?J|W|%|×")


_WHOLE_CELLS = 32
"""Shorter parts of a list are not broken."""


def _words(text: str) -> list[str]:
    """Return the parts that are not wrapped: words, a number with its unit, and short parts between commas."""
    words: list[str] = []
    *parts, last = text.split(", ")
    for part in (*(f"{part}," for part in parts), last):
        if len(part) <= _WHOLE_CELLS:
            words.append(part)
            continue
        begin = len(words)
        for word in part.split(" "):
            if words[begin:] and words[-1][-1:].isdigit() and _UNIT.fullmatch(word.rstrip(".,;:)")):
                words[-1] += f" {word}"
            else:
                words.append(word)
    return words


def labelled_rows(terminal: Terminal, rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Return rows by label, with their parts aligned below each other. Rows are wrapped before the same part."""
    room = None if terminal.width_cells is None else max(terminal.width_cells - _LABEL_CELLS, 8)
    safe = [[terminal.text(part) for part in parts] for parts in rows.values()]
    fitted = [[part if room is None else terminal.shortened(part, room) for part in parts] for parts in safe]
    widths = [max(cell_len(part) for part in column) for column in zip(*fitted, strict=True)]
    lines = []
    for label, parts in zip(rows, fitted, strict=True):
        even = [part + " " * (cells - cell_len(part)) for part, cells in zip(parts, widths, strict=True)]
        first, *more = terminal.wrapped([f"{label:<{_LABEL_CELLS - 1}} {even[0]}", *even[1:]], _LABEL_CELLS)
        lines += [terminal.styled(label, BOLD) + first[len(label) :].rstrip(), *(line.rstrip() for line in more)]
    return lines


def overhead_parts(overhead: Overhead) -> list[str]:
    """Return the overhead of recording: ``12.1 MiB of host memory``, ``3.20 s of pauses``; empty if there is none.

    Profiled steps are compared with unprofiled ones.
    """
    if not overhead.recorder_bytes and not overhead.paused_ns:
        return []
    parts = [] if overhead.paused_ns is None else [f"{format_ns(overhead.paused_ns)} of pauses"]
    if overhead.recorder_bytes is not None:
        parts.insert(0, f"{format_bytes(overhead.recorder_bytes)} of host memory")
    if overhead.energy_j is not None:
        parts[-1] += f" (at most {format_joules(overhead.energy_j)})"
    if overhead.profiled_step_frac is not None:
        speed, of_operators = _speed(overhead.profiled_step_frac), overhead.profiled_operators_step_frac
        named = "" if of_operators is None else f" ({_speed(of_operators)} with operators recorded)"
        parts.append(f"profiled steps are {speed} than unprofiled ones{named}")
    return parts


def _speed(frac: float) -> str:
    """Return the ratio of two times in words: ``2.1× slower``, ``not slower`` up to 5 %.

    Recording makes no step faster: where profiled steps are, other steps of the program have more to do.
    """
    return f"{frac:.1f}× slower" if frac > 1.05 else "not slower"
