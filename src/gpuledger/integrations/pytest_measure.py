"""What a recorded test took, and how that is said."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.breakdown import Account, break_down
from gpuledger.analyze.memory.instant import Instant, find_peak
from gpuledger.analyze.memory.lifetimes import allocated_curve, device_indices, read_labels, read_lives, read_numbers
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.errors import EmptyRunError
from gpuledger.model.accounts import ROUNDING
from gpuledger.report.base.phrases import place_of
from gpuledger.report.base.quantities import exactly
from gpuledger.report.base.terminal import printable
from gpuledger.units import device_label, format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.model.run import Rank, Run

_TOP = 5


@dataclass(frozen=True)
class TestBytes:
    """The most bytes a test had on one device above what was there when it began, and who held them."""

    peak_bytes: int
    before_bytes: int
    instant: Instant
    accounts: tuple[Account, ...]

    __test__ = False


def measure_test(run: Run) -> TestBytes | None:
    """Return what a recorded test took on the device where it took most; None where it allocated nothing.

    Raises:
        EmptyRunError: the recorder says that it could not see.
    """
    rank = run.rank()
    devices = _devices(rank)
    if not devices:
        notes = list(rank.manifest.notes)
        if notes:
            raise EmptyRunError(f"{run.path.name}: {notes[0]}")
        return None
    found = [_measure_device(rank, device) for device in devices]
    return max(found, key=lambda one: one.peak_bytes)


def grown_bytes(run: Run, warmup: int) -> tuple[int, list[tuple[str, int]]]:
    """Return the growth by the calls after ``warmup`` in bytes, and its largest parts, on the device with the most.

    Step 1 of the recording is empty and step ``n + 1`` is call ``n``.

    Source: the allocator's counters at the end of each call, exact.
    """
    rank = run.rank()
    grown = {}
    for device in _devices(rank):
        reasons, words = read_labels(rank, "counters", "reason", device)
        ends = reasons == words.index("step_end")
        sizes = read_numbers(rank, "counters", "allocated_bytes", device)[ends]
        steps = read_numbers(rank, "counters", "step", device)[ends]
        last = sizes[steps == steps.max()][-1]
        grown[device] = int(last - sizes[steps == warmup + 1][-1])
    if not grown:
        return 0, []
    device = max(grown, key=lambda one: grown[one])
    return grown[device], _kept_since(rank, device, warmup + 1)


def table_lines(measured: Sequence[tuple[str, int]]) -> list[str]:
    """Return one line per test, most bytes first."""
    ordered = sorted(measured, key=lambda row: (-row[1], row[0]))
    return [f"{format_bytes(size):>10}  {printable(name)}" for name, size in ordered]


def over_memory(found: TestBytes, limit_bytes: int, kept: Path | None) -> str:
    """Return the failure message of a test: its peak, where it was, and the largest categories and modules."""
    before = f" in addition to {format_bytes(found.before_bytes)} at its start" if found.before_bytes else ""
    place = place_of(found.instant) or "outside steps"
    lines = [
        f"allocated {exactly(found.peak_bytes, 'B')}{before}, {format_bytes(found.peak_bytes - limit_bytes)} over the "
        f"limit of {format_bytes(limit_bytes)}",
        f"at {place}, on {device_label(found.instant.device_idx)}:",
        *_account_lines([(_label(account), account.bytes) for account in found.accounts[:_TOP]]),
        _next_line(kept),
    ]
    return "\n".join(printable(line) for line in lines)


def over_growth(grown: int, limit_bytes: int, calls: int, accounts: list[tuple[str, int]], kept: Path | None) -> str:
    """Return the failure message of a test: the growth by its calls, and the largest parts."""
    lines = [
        f"{exactly(grown, 'B')} still allocated after {calls} calls, {format_bytes(grown - limit_bytes)} over the "
        f"limit of {format_bytes(limit_bytes)}:",
        *_account_lines(accounts[:_TOP]),
        _next_line(kept),
    ]
    return "\n".join(printable(line) for line in lines)


def _devices(rank: Rank) -> tuple[int, ...]:
    """Return the GPUs that have blocks; the CPU's tensors only where no GPU has."""
    devices = device_indices(rank)
    return tuple(device for device in devices if device >= 0) or devices


def _measure_device(rank: Rank, device_idx: int) -> TestBytes:
    peak = find_peak(rank, device_idx)
    curve = allocated_curve(read_lives(rank, device_idx))
    before = curve.at(-1)
    breakdown = break_down(rank, peak)
    return TestBytes(breakdown.allocated_bytes - before, before, peak, breakdown.accounts)


def _kept_since(rank: Rank, device_idx: int, step: int) -> list[tuple[str, int]]:
    """Return category and module -> bytes of blocks that were allocated after ``step`` and are alive at the end."""
    numbers = read_numbers(rank, "steps", "step", device_idx)
    ends = read_numbers(rank, "steps", "end_index", device_idx)
    lives = read_lives(rank, device_idx)
    young = lives.alloc_index > int(ends[numbers <= step].max(initial=-1))
    kept = young & (lives.free_requested_index == NEVER)
    codes, words = read_labels(rank, "blocks", "category", device_idx)
    modules = read_numbers(rank, "blocks", "module_id", device_idx)
    paths = dict(zip(*(rank.table("modules", (c,)).column(0).to_pylist() for c in ("module_id", "path")), strict=True))
    sizes: dict[str, int] = {}
    for code, module_id, size in zip(
        codes[kept].tolist(), modules[kept].tolist(), lives.requested_bytes[kept].tolist(), strict=True
    ):
        label = _words(words[code], paths.get(module_id, ""))
        sizes[label] = sizes.get(label, 0) + size
    return sorted(sizes.items(), key=lambda pair: -pair[1])


def _label(account: Account) -> str:
    return account.category if account.category == ROUNDING else _words(account.category, account.module)


def _words(category: str, module: str) -> str:
    return f"{category:<20} {module or '(outside modules)'}"


def _account_lines(accounts: list[tuple[str, int]]) -> list[str]:
    return [f"  {format_bytes(size):>10}  {label}" for label, size in accounts]


def _next_line(kept: Path | None) -> str:
    if kept is None:
        return "to keep the recording: pytest --gpuledger-out DIR"
    return f"next: gpuledger show {shlex.quote(str(kept))} --by module"
