"""Memory, time and energy of the same modules, phases, scopes, source lines, operators or kernels, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.groups import NO_SCOPE, group_accounts
from gpuledger.analyze.memory.instant import module_classes
from gpuledger.analyze.memory.lines.source_lines import NO_LINE
from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.analyze.module_paths import common_pattern, without_number
from gpuledger.analyze.step.energy import IDLE, StepEnergy, share_energy, step_energy, work_by_class
from gpuledger.analyze.step.line_accounts import lacks_lines
from gpuledger.analyze.step.work import read_work

if TYPE_CHECKING:
    from gpuledger.analyze.memory.breakdown import Breakdown
    from gpuledger.model.run import Rank

WITH_BYTES = ("category", "module", "phase", "scope", "line", "function")
WITH_WORK = ("module", "phase", "scope", "line", "function", "operator", "kernel", "kind")
"""Groupings that have time and energy. The allocator does not know kernels, and a kernel has no category."""

OF_CODE = ("line", "function")
"""Groupings by source code. Their time and energy need the step that records lines."""

SORTS = ("bytes", "time", "energy", "forward", "backward", "evaluation")
NO_NAME = "(no name)"
IDLE_LABEL = "(idle)"
NO_PHASE = "(no phase)"
_WITHOUT = {"module": OUTSIDE_PATH, "phase": NO_PHASE, "scope": NO_SCOPE, "line": NO_LINE, "function": NO_LINE}
"""Label of rows without a module, phase, ..."""
_PARTS = ("forward", "backward", "optimizer", "evaluation")
"""Phases that have a time of their own in a line."""
_NO_TIME = (0.0, 0.0, 0.0, 0.0, 0.0)
_UNKNOWN_TIME = (None, None, None, None, None)


@dataclass(frozen=True)
class GroupLine:
    """One row; a quantity that is not known for it is None. ``folded`` is the number of identical modules in it.

    Times and energies are of one step. ``forward_ns``, ``backward_ns``, ``optimizer_ns`` and ``evaluation_ns`` (forward
    without gradients) are parts of ``time_ns``.
    """

    label: str
    bytes: int | None
    time_ns: float | None
    forward_ns: float | None
    backward_ns: float | None
    energy_j: float | None
    uncertainty_j: float | None
    folded: int = 1
    optimizer_ns: float | None = None
    evaluation_ns: float | None = None


def lines_by(
    rank: Rank,
    breakdown: Breakdown,
    group_by: str,
    *,
    depth: int | None = None,
    sort: str | None = None,
    fold: bool = False,
) -> tuple[GroupLine, ...]:
    """Return one line per ``group_by``, largest first.

    Bytes sum to allocated bytes, times to the work, energies to the step's. If no work has a source line, times and
    energies by line or function are unknown.

    Args:
        rank: One process.
        breakdown: The bytes at one instant, broken down by ``group_by``.
        group_by: category, module, phase, scope, line, function, operator, kernel or kind.
        depth: Truncate module paths and scopes to this number of components.
        sort: One of SORTS; None selects the first one available.
        fold: Merge modules with paths that differ only in a number.
    """
    device_idx = breakdown.instant.device_idx
    sizes = (
        {group.label: group.bytes for group in group_accounts(breakdown.accounts, group_by)}
        if group_by in WITH_BYTES
        else {}
    )
    has_work = group_by in WITH_WORK and not (group_by in OF_CODE and lacks_lines(rank, device_idx))
    times = _times(rank, device_idx, group_by, depth) if has_work else {}
    joules = _joules(rank, step_energy(rank, device_idx), group_by, depth) if has_work else {}
    lines = []
    for label in dict.fromkeys((*sizes, *times, *joules)):
        total, forward, backward, optimizer, evaluation = times.get(label, _NO_TIME) if times else _UNKNOWN_TIME
        energy_j, off_j = joules.get(label, (0.0, 0.0)) if joules else (None, None)
        size = sizes.get(label, 0) if sizes else None
        lines.append(GroupLine(label, size, total, forward, backward, energy_j, off_j, 1, optimizer, evaluation))
    return sort_lines(fold_numbers(lines, module_classes(rank)) if fold else lines, sort)


def sort_lines(lines: Sequence[GroupLine], sort: str | None) -> tuple[GroupLine, ...]:
    """Return the lines, largest first: by ``sort``, or else by the first of SORTS that any line has."""
    there = [name for name in SORTS if any(_amount(line, name) for line in lines)]
    chosen = sort if sort in there else next(iter(there), "bytes")
    return tuple(sorted(lines, key=lambda line: (-(_amount(line, chosen) or 0.0), line.label)))


def _amount(line: GroupLine, sort: str) -> float | None:
    amounts = (line.bytes, line.time_ns, line.energy_j, line.forward_ns, line.backward_ns, line.evaluation_ns)
    return dict(zip(SORTS, amounts, strict=True))[sort]


def fold_numbers(lines: Sequence[GroupLine], classes: Mapping[str, str]) -> list[GroupLine]:
    """Return the lines with identical layers merged: those of one class with paths that differ only in a number.

    Args:
        lines: One per module.
        classes: Module path -> class.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[GroupLine]] = {}
    for line in lines:
        parts = line.label.split(".")
        numbered = [".".join(parts[: place + 1]) for place, part in enumerate(parts) if without_number(part) != part]
        kinds = tuple(classes.get(path, "") for path in numbered)
        groups.setdefault((".".join(map(without_number, parts)), kinds), []).append(line)
    merged = {key: common_pattern([line.label for line in group]) for key, group in groups.items() if len(group) > 1}
    alike: dict[str, list[tuple[str, ...]]] = {}
    for key, pattern in merged.items():
        alike.setdefault(pattern, []).append(key[1])
    return [
        _folded(f"{merged[key]} {_apart(key[1], alike[merged[key]])}".rstrip(), group) if key in merged else group[0]
        for key, group in groups.items()
    ]


def _apart(kinds: tuple[str, ...], alike: Sequence[tuple[str, ...]]) -> str:
    """Return the classes that distinguish a group from others with the same pattern."""
    return " ".join(kind for kind, others in zip(kinds, zip(*alike, strict=True), strict=True) if len(set(others)) > 1)


def _folded(label: str, group: list[GroupLine]) -> GroupLine:
    def summed(amounts: list[float | None]) -> float | None:
        return None if amounts[0] is None else sum(amount or 0.0 for amount in amounts)

    return GroupLine(
        label=label,
        bytes=None if group[0].bytes is None else sum(line.bytes or 0 for line in group),
        time_ns=summed([line.time_ns for line in group]),
        forward_ns=summed([line.forward_ns for line in group]),
        backward_ns=summed([line.backward_ns for line in group]),
        energy_j=summed([line.energy_j for line in group]),
        uncertainty_j=summed([line.uncertainty_j for line in group]),
        folded=len(group),
        optimizer_ns=summed([line.optimizer_ns for line in group]),
        evaluation_ns=summed([line.evaluation_ns for line in group]),
    )


def _label(text: str, group_by: str) -> str:
    if text:
        return text
    return _WITHOUT.get(group_by, NO_NAME)


def _times(rank: Rank, device_idx: int, group_by: str, depth: int | None) -> dict[str, tuple[float, ...]]:
    """Return label -> ns of one step, in total and in each of ``_PARTS``; empty without a timing measurement."""
    work = read_work(rank, device_idx)
    if work is None:
        return {}
    by = (group_by, "phase") if group_by != "phase" else ("phase",)
    keys, durations_s = work_by_class(rank, work, by, depth)
    found: dict[str, tuple[float, ...]] = {}
    for key, seconds in zip(keys, durations_s.sum(axis=1).tolist(), strict=True):
        label, phase, time_ns = _label(key[0], group_by), key[-1], seconds * 1e9
        total, *parts = found.get(label, _NO_TIME)
        found[label] = (
            total + time_ns,
            *(before + time_ns * (phase == part) for part, before in zip(_PARTS, parts, strict=True)),
        )
    return found


def _joules(rank: Rank, step: StepEnergy | None, group_by: str, depth: int | None) -> dict[str, tuple[float, float]]:
    """Return label -> energy of one step in J, and its uncertainty; empty without an energy measurement."""
    if step is None:
        return {}
    shares = share_energy(rank, step, (group_by, "phase") if group_by != "phase" else ("phase",), depth)
    found: dict[str, tuple[float, float]] = {}
    for one in shares:
        label = IDLE_LABEL if one.key[-1] == IDLE else _label(one.key[0], group_by)
        before = found.get(label, (0.0, 0.0))
        found[label] = (before[0] + one.energy_j, before[1] + one.uncertainty_j)
    return found
