"""Query a run from Python: memory breakdown, GPU memory balance, step times, energy, and limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuledger.analyze.compare.budget import DEFAULT_ALLOWED, Gate, Limit, limits_against, parse_allowed, parse_budget
from gpuledger.analyze.compare.budget import check as check_limits
from gpuledger.analyze.memory.breakdown import Breakdown, break_down
from gpuledger.analyze.memory.instant import resolve_instant
from gpuledger.analyze.overview.balance import Balance, build_balance
from gpuledger.analyze.step.energy import EnergyBreakdown, break_down_energy
from gpuledger.analyze.step.steps import StepTimes
from gpuledger.analyze.step.steps import step_times as times_of
from gpuledger.errors import UsageError
from gpuledger.files.reading import read_text
from gpuledger.model.run import Run
from gpuledger.services.runs import open_run


def breakdown(
    run: str | Path | Run,
    by: Sequence[str] = ("category",),
    *,
    at: str = "peak",
    step: int | None = None,
    depth: int | None = None,
    rank: int = 0,
    device_idx: int | None = None,
) -> Breakdown:
    """Return the allocated bytes at one instant by category, module, phase, scope or tensor, largest first.

    Args:
        run: A run or its path, or a file of another format.
        by: How to break down: any of ``category``, ``module``, ``phase``, ``scope`` and ``tensor``.
        at: ``peak``, ``end``, or a time since the start of the recording, such as ``1.5s`` or ``350ms``.
        step: Use the peak or the end of this step; a time counts from its start.
        depth: Truncate module paths and scopes to their first ``depth`` components.
        rank: One process of the run.
        device_idx: torch's device index, -1 for CPU tensors; None selects the device with the highest peak.

    Raises:
        EmptyRunError: no block was recorded.
        InputError: ``run`` is not a run.
        UsageError: the run has no such rank, device, instant or step, or ``by`` has an unknown word.

    Source: caching allocator's history, exact; excludes context, libraries and other processes.

    Example:
        >>> import gpuledger
        >>> for account in gpuledger.breakdown("train.ledger").accounts:  # doctest: +SKIP
        ...     print(account.category, account.bytes)
    """
    one = open_run(run).rank(rank)
    return break_down(one, resolve_instant(one, at, device_idx, step), tuple(by), depth)


def balance(
    run: str | Path | Run, *, at: str = "peak", step: int | None = None, rank: int = 0, device_idx: int | None = None
) -> Balance:
    """Return the used bytes of the GPU at one instant, line by line: context, libraries, allocator, categories.

    Args:
        run: A run or its path, or a file of another format.
        at: ``peak``, ``end``, or a time since the start of the recording, such as ``1.5s`` or ``350ms``.
        step: Use the peak or the end of this step; a time counts from its start.
        rank: One process of the run.
        device_idx: torch's device index; None selects the device with the highest peak.

    Raises:
        EmptyRunError: no block was recorded.
        InputError: ``run`` is not a run.
        UsageError: the run has no such rank, device, instant or step.

    Source: each line has its own. Unaccounted memory is what the GPU reports beyond all other lines.

    Example:
        >>> import gpuledger
        >>> gpuledger.balance("train.ledger").unaccounted_bytes  # doctest: +SKIP
    """
    return build_balance(open_run(run).rank(rank), device_idx, at, step)


def step_times(run: str | Path | Run, *, rank: int = 0) -> StepTimes:
    """Return the median and the 95th percentile of the step time in ns, of unprofiled steps if there are any.

    Args:
        run: A run or its path, or a file of another format.
        rank: One process of the run.

    Raises:
        InputError: ``run`` is not a run.
        UsageError: the run has no such rank.

    Source: host clock, without the recorder's pauses. The first step, which warms up, is left out if there are others.

    Example:
        >>> import gpuledger
        >>> gpuledger.step_times("train.ledger").median_ns  # doctest: +SKIP
    """
    return times_of(open_run(run).rank(rank))


def step_energy(run: str | Path | Run, *, rank: int = 0, device_idx: int | None = None) -> EnergyBreakdown | None:
    """Return the energy of one step in J, by module and phase; None without an energy measurement.

    Args:
        run: A run or its path, or a file of another format.
        rank: One process of the run.
        device_idx: torch's device index; None selects the GPU that used the most energy.

    Raises:
        InputError: ``run`` is not a run.
        UsageError: the run has no such rank.

    Source: NVML's energy counter for the sum, with its uncertainty; ``method`` describes the attribution.

    Example:
        >>> import gpuledger
        >>> energy = gpuledger.step_energy("train.ledger")  # doctest: +SKIP
        >>> energy and energy.step_energy_j  # doctest: +SKIP
    """
    return break_down_energy(open_run(run).rank(rank), device_idx)


def check(
    run: str | Path | Run,
    budget: str | Path | None = None,
    *,
    against: str | Path | Run | None = None,
    allow: str | None = None,
) -> tuple[Gate, ...]:
    """Return each limit with the run's worst value on any rank and device. ``ok`` is True if the limit is met.

    Args:
        run: A run or its path, or a file of another format.
        budget: A TOML file of limits, as written by ``gpuledger budget``.
        against: Another run. Without ``allow``, the run may not have more allocated bytes than this one.
        allow: How much may exceed ``against``, such as ``peak_allocated_bytes=+2%,step_energy_j=+3%``.

    Raises:
        EmptyRunError: nothing was recorded.
        InputError: one is not a run, or ``budget`` cannot be read.
        UsageError: there is nothing to check against, or ``allow`` cannot be parsed.

    Source: allocator metrics are exact; sampled metrics need a tolerance in ``budget``. A metric that was not measured
    does not meet its limit.

    Example:
        >>> import gpuledger
        >>> all(gate.ok for gate in gpuledger.check("train.ledger", "budget.toml"))  # doctest: +SKIP
    """
    base = None if against is None else open_run(against)
    return check_limits(open_run(run), read_limits(budget, base, allow))


def read_limits(budget: str | Path | None, base: Run | None, allow: str | None) -> tuple[Limit, ...]:
    """Return the limits from a budget file, and those relative to another run.

    Raises:
        InputError: ``budget`` cannot be read.
        UsageError: there is neither, or ``allow`` cannot be parsed or has no ``base``.
    """
    if budget is None and base is None:
        raise UsageError(
            "no limits to check the run against",
            hint="Name a limits file with --budget FILE, or a run to compare with, with --against RUN",
        )
    if allow is not None and base is None:
        raise UsageError(
            "allow applies to a comparison, but there is no run to compare with",
            hint="Name the run to compare with: --against RUN",
        )
    limits: tuple[Limit, ...] = ()
    if budget is not None:
        text = read_text(Path(budget), hint="Write a first limits file with: gpuledger budget RUN")
        limits += parse_budget(text, str(budget))
    if base is not None:
        limits += limits_against(base, DEFAULT_ALLOWED if allow is None else parse_allowed(allow))
    return limits
