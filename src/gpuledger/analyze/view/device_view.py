"""The results of one device of a rank, each computed when it is first asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from gpuledger.analyze.memory.breakdown import (
    Account,
    Breakdown,
    accounts_outside_modules,
    break_down,
    of_modules,
)
from gpuledger.analyze.memory.groups import Group, group_accounts
from gpuledger.analyze.memory.instant import Instant, module_classes, resolve_instant
from gpuledger.analyze.memory.lifetimes import read_lives
from gpuledger.analyze.memory.tree import NOT_LINES
from gpuledger.analyze.overview.summary import Summary, summarize
from gpuledger.analyze.step.side_by_side import WITH_BYTES, lines_by
from gpuledger.analyze.view.options import ViewOptions
from gpuledger.errors import UsageError
from gpuledger.model.accounts import ROUNDING

if TYPE_CHECKING:
    from gpuledger.analyze.memory.account_series import AccountSeries
    from gpuledger.analyze.memory.lines.flame import FlameNode
    from gpuledger.analyze.memory.lines.loops import Loop
    from gpuledger.analyze.memory.timeline import Band, Timeline
    from gpuledger.analyze.memory.unknown import Unknowns
    from gpuledger.analyze.overview.balance import Balance
    from gpuledger.analyze.overview.finding import Finding
    from gpuledger.analyze.step.energy import EnergyBreakdown
    from gpuledger.analyze.step.fusions import FusedKernel
    from gpuledger.analyze.step.overhead import Overhead
    from gpuledger.analyze.step.rates import Rates
    from gpuledger.analyze.step.side_by_side import GroupLine
    from gpuledger.analyze.step.step_parts import StepParts
    from gpuledger.analyze.step.times import TimeBreakdown
    from gpuledger.analyze.view.report_tree import Module, ReportTree
    from gpuledger.analyze.view.step_amounts import Amount, StepBar
    from gpuledger.model.run import Rank

POINTS_OF_FILE, FEWEST_POINTS = 24_000, 400
INSTANTS, INSTANTS_OF_FILE, FEWEST_INSTANTS = 96, 384, 12
RUNS_OF_FILE = 180_000
"""Maximum number of runs of equal bytes in one file.

A model with many modules gets fewer instants, so that the file stays small.
"""
MAX_TENSORS = 200
MAX_BANDS = 4_000


@dataclass(frozen=True)
class LargestTensors:
    """The largest tensors, at most :data:`MAX_TENSORS`, without rounding, and the number of smaller ones."""

    accounts: tuple[Account, ...]
    left_out: int


@dataclass(frozen=True)
class DeviceView:
    """The results of one device of one rank. Each part is computed on first use and cached.

    ``devices_in_run`` is the number of devices in one file: the more, the coarser the timeline of each. Any part raises
    EmptyRunError if the rank has no block, and UsageError if the device, the instant or the step does not exist.
    """

    rank: Rank
    device_idx: int
    options: ViewOptions
    devices_in_run: int = 1

    @cached_property
    def summary(self) -> Summary:
        """Return the headline figures."""
        return summarize(self.rank, self.device_idx)

    @cached_property
    def instant(self) -> Instant:
        """Return the requested instant."""
        if self.options.at == "peak" and self.options.step is None:
            return self.summary.instant
        return resolve_instant(self.rank, self.options.at, self.device_idx, self.options.step)

    @cached_property
    def breakdown(self) -> Breakdown:
        """Return the bytes at the instant, broken down as requested."""
        return break_down(self.rank, self.instant, self.options.account_words, self.options.depth)

    @cached_property
    def tensors(self) -> LargestTensors:
        """Return the bytes at the instant by category, module and name, the largest of them."""
        accounts = break_down(self.rank, self.instant, by=("category", "module", "tensor", "line")).accounts
        named = [account for account in accounts if account.category != ROUNDING]
        return LargestTensors(tuple(named[:MAX_TENSORS]), max(0, len(named) - MAX_TENSORS))

    @cached_property
    def breakdown_by_line(self) -> Breakdown:
        """Return the bytes at the instant by category and source line."""
        return break_down(self.rank, self.instant, by=("category", "line"))

    @cached_property
    def source_lines(self) -> tuple[Group, ...]:
        """Return the bytes at the instant by source line, largest first."""
        return group_accounts(self.breakdown_by_line.accounts, "line")

    @cached_property
    def line_amounts(self) -> tuple[GroupLine, ...]:
        """Return bytes at the instant, and time and energy of a step, by source line, largest first."""
        return lines_by(self.rank, self.breakdown_by_line, "line")

    @cached_property
    def flame(self) -> tuple[FlameNode, ...]:
        """Return the nodes of the flame graph of source lines at the instant."""
        from gpuledger.analyze.memory.lines.flame import build_flame

        return build_flame(self.rank, self.instant)

    @cached_property
    def uses_modules(self) -> bool:
        """Return whether any memory at the instant is attributed to a module."""
        live = read_lives(self.rank, self.device_idx).allocated_at(self.instant.index)
        return bool((live & of_modules(self.rank, self.device_idx)).any())

    @cached_property
    def outside_modules(self) -> tuple[Account, ...]:
        """Return the bytes outside modules at the instant by name and source line."""
        return accounts_outside_modules(self.rank, self.instant, by=("tensor", "line"))

    @property
    def places_by(self) -> Literal["module", "line"]:
        """Return what shows where memory is: modules, or source lines in a program without modules."""
        has_lines = not self.uses_modules and any(one.label not in NOT_LINES for one in self.source_lines)
        return "line" if has_lines else "module"

    @cached_property
    def loop(self) -> Loop | None:
        """Return the main loop of a program without steps; None if it has steps, or if no loop is found."""
        from gpuledger.analyze.memory.lines.loops import find_loop

        return None if self.rank.manifest.steps_seen else find_loop(self.rank, self.device_idx)

    @cached_property
    def unknowns(self) -> Unknowns:
        """Return the memory without a name at the instant."""
        from gpuledger.analyze.memory.unknown import list_unknown

        return list_unknown(self.rank, self.instant)

    @cached_property
    def balance(self) -> Balance:
        """Return the GPU memory balance at the instant."""
        from gpuledger.analyze.overview.balance import build_balance

        return build_balance(self.rank, self.device_idx, self.options.at, self.options.step)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Return suggestions that would lower the peak."""
        from gpuledger.analyze.overview.findings import find_findings

        return find_findings(self.rank, self.device_idx)

    @cached_property
    def beyond_peak_bytes(self) -> int:
        """Return the memory beyond the allocated peak that the process needs: unused segments, context, libraries."""
        from gpuledger.analyze.overview.process_bytes import read_outside

        libraries, summary = self.rank.manifest.libraries, self.summary
        if self.device_idx < 0:
            return 0
        outside = read_outside(self.rank, self.device_idx)
        used = 0 if libraries is None else (libraries.context_bytes or 0) + (libraries.library_bytes or 0)
        used = used if outside is None else outside.total_bytes
        reserved_bytes = summary.recorded_peak_reserved_bytes or 0  # not in every imported file
        return used + max(0, reserved_bytes - summary.recorded_peak_allocated_bytes)

    def fits(self, peak_bytes: int | None) -> bool | None:
        """Return whether a process with this allocated peak fits in ``options.fit_bytes``; None if one is unknown."""
        if self.options.fit_bytes is None or peak_bytes is None:
            return None
        return peak_bytes + self.beyond_peak_bytes <= self.options.fit_bytes

    @cached_property
    def times(self) -> TimeBreakdown | None:
        """Return the time of a step by module and phase; None without a timing measurement."""
        from gpuledger.analyze.step.times import break_down_time

        return break_down_time(self.rank, self.device_idx)

    @cached_property
    def parts(self) -> StepParts | None:
        """Return a step in its parts; None without a timing measurement or an unprofiled step."""
        from gpuledger.analyze.step.step_parts import step_parts

        return step_parts(self.rank, self.device_idx)

    @cached_property
    def energy(self) -> EnergyBreakdown | None:
        """Return the energy of a step by module and phase; None without an energy measurement."""
        from gpuledger.analyze.step.energy import break_down_energy

        return break_down_energy(self.rank, self.device_idx)

    @cached_property
    def rates(self) -> Rates | None:
        """Return samples and tokens per second and per unit of energy; None if no module was called with a tensor."""
        from gpuledger.analyze.step.rates import find_rates

        return find_rates(self.rank, self.device_idx)

    @cached_property
    def overhead(self) -> Overhead:
        """Return the overhead of recording."""
        from gpuledger.analyze.step.overhead import find_overhead

        return find_overhead(self.rank, self.device_idx)

    @cached_property
    def lines(self) -> tuple[GroupLine, ...]:
        """Return memory, time and energy as requested; empty if no table was requested."""
        group_by = self.options.group_by
        return self.lines_by(group_by) if group_by and group_by != "fusion" else ()

    @cached_property
    def fusions(self) -> tuple[FusedKernel, ...]:
        """Return the kernels of compiled code in one step.

        Raises:
            UsageError: they were requested, and the run has none.
        """
        from gpuledger.analyze.step.fusions import fused_kernels, why_no_kernels

        found = fused_kernels(self.rank, self.device_idx)
        if not found and self.options.group_by == "fusion":
            _refuse_estimate(self.rank, "fusion")
            why, hint = why_no_kernels(self.rank.manifest)
            raise UsageError(f"--by fusion: {why}", hint=hint)
        return found

    def lines_by(self, group_by: str) -> tuple[GroupLine, ...]:
        """Return memory, time and energy side by side; empty for tensors.

        Raises:
            UsageError: ``group_by`` needs a timing measurement, and the run has none. Or nothing is allocated.
        """
        asked = self.options
        lines = lines_by(self.rank, self.breakdown, group_by, depth=asked.depth, sort=asked.sort, fold=asked.fold)
        if not lines and group_by != "tensor":
            if group_by in WITH_BYTES:
                raise UsageError(f"--at {asked.at}: no memory is allocated at this moment", hint="Use --at peak")
            _refuse_estimate(self.rank, group_by)
            hint = "gpuledger run --passes memory,energy,time"
            raise UsageError(f"--by {group_by}: the run has no timing measurement", hint=hint)
        return lines

    @cached_property
    def timeline(self) -> Timeline:
        """Return the bytes over time."""
        from gpuledger.analyze.memory.timeline import build_timeline

        points = _share_of(POINTS_OF_FILE, self.devices_in_run, self.options.timeline_points, FEWEST_POINTS)
        return build_timeline(self.rank, self.device_idx, points)

    @property
    def origin_ns(self) -> int:
        """Return the time of the timeline's first event."""
        return int(self.timeline.t_ns[0])

    @cached_property
    def bands(self) -> tuple[Band, ...]:
        """Return the steps, and the phases that touch the timeline, the first :data:`MAX_BANDS` of them."""
        from gpuledger.analyze.memory.timeline import bands

        start_ns, end_ns = self.origin_ns, int(self.timeline.t_ns[-1])
        shown = [
            band
            for band in bands(self.rank, self.device_idx)
            if band.end_ns >= start_ns and (band.kind == "step" or band.start_ns <= end_ns)
        ]
        return tuple(shown[:MAX_BANDS])

    @cached_property
    def account_series(self) -> AccountSeries:
        """Return the breakdown at as many instants as fit in the file, including the peak."""
        from gpuledger.analyze.memory.account_series import build_account_series, choose_instants, keep_instants

        count = _share_of(INSTANTS_OF_FILE, self.devices_in_run, INSTANTS, FEWEST_INSTANTS)
        instants = choose_instants(self.rank, self.timeline, self.summary.instant, count)
        series = build_account_series(self.rank, self.device_idx, instants)
        while series.bytes.size > RUNS_OF_FILE // self.devices_in_run and len(instants) > FEWEST_INSTANTS:
            instants = instants[: max(FEWEST_INSTANTS, len(instants) * 3 // 4)]
            series = keep_instants(series, instants)
        return series

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """Return every module of the rank."""
        from gpuledger.analyze.view.report_tree import Module

        table = self.rank.table("modules", ("module_id", "parent_id", "path", "class_name"))
        columns = (table[name].to_pylist() for name in table.column_names)
        return tuple(Module(*row) for row in zip(*columns, strict=True))

    @cached_property
    def classes(self) -> dict[str, str]:
        """Return the class of every module, by its path."""
        return module_classes(self.rank)

    @cached_property
    def tree(self) -> ReportTree:
        """Return the modules with bytes, time or energy, and their ancestors."""
        from gpuledger.analyze.view.report_tree import build_tree
        from gpuledger.analyze.view.step_amounts import owners_of

        owners = set(self.account_series.module_id.tolist())
        for amounts in (self.time_amounts, self.energy_amounts):
            owners |= owners_of(amounts, self.modules)
        return build_tree(self.modules, owners)

    @cached_property
    def time_amounts(self) -> tuple[Amount, ...]:
        """Return the time of a step in ns by module and phase; empty without a timing measurement."""
        from gpuledger.analyze.view.step_amounts import time_amounts

        return () if self.times is None else time_amounts(self.times)

    @cached_property
    def energy_amounts(self) -> tuple[Amount, ...]:
        """Return the energy of a step in J by module and phase; empty without an energy measurement."""
        from gpuledger.analyze.view.step_amounts import energy_amounts

        return () if self.energy is None else energy_amounts(self.energy)

    @cached_property
    def bars(self) -> tuple[StepBar, ...]:
        """Return one step split into parts, by time and by energy."""
        from gpuledger.analyze.view.step_amounts import energy_bars, time_bars

        times = () if self.times is None else time_bars(self.times, self.parts)
        return times if self.energy is None else (*times, *energy_bars(self.energy))

    @cached_property
    def windows(self) -> tuple[dict[str, Any], ...]:
        """Return the energy windows of the GPU, ordered by time."""
        from gpuledger.analyze.view.watched_card import read_windows

        return read_windows(self.rank, self.device_idx)


def _share_of(total: int, devices: int, most: int, fewest: int) -> int:
    """Return the share of ``total`` for one of ``devices``, limited to ``fewest`` to ``most``."""
    return max(fewest, min(most, total // devices))


def _refuse_estimate(rank: Rank, group_by: str) -> None:
    """Refuse a grouping of times in an estimate.

    Raises:
        UsageError: nothing ran, because the GPU is simulated.
    """
    if not rank.manifest.recorder.has_measured_times:
        hint = "Record the program on a GPU with: gpuledger run --passes memory,energy,time"
        raise UsageError(f"--by {group_by}: the run is an estimate, and its simulated GPU has no times", hint=hint)
