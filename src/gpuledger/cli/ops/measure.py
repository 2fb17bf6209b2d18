"""``gpuledger ops measure``: measure operators missing from the database, on this machine's GPU or CPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import device_option, json_option, print_json, print_lines, takes
from gpuledger.cli.ops.common import Decorator, database_option, print_remarks, seed_option, time_limit_option
from gpuledger.errors import UsageError
from gpuledger.services.sums import open_workload
from gpuledger.units import counted, format_frac, format_ns, parse_duration_ns, parse_frac

if TYPE_CHECKING:
    from gpuledger.ops.database.method import Method
    from gpuledger.ops.measure.fill import Filled
    from gpuledger.ops.measure.measure import OnProgress, Outcome, Progress

PRECISION = "1%"


def workloads_argument() -> Decorator:
    """Return the argument WORKLOAD…."""
    return click.argument("workload_paths", metavar="WORKLOAD…", nargs=-1, required=True)


@dataclass(frozen=True)
class MeasuringFlags:
    """What :func:`measuring_options` say of how and where operators are measured."""

    device: str | None
    time_only: bool
    precision_text: str
    energy_coverage: str
    seed: int
    allow_busy: bool


def measuring_options() -> Decorator:
    """Return the options that say how and where operators are measured."""
    options = (
        device_option("  [default: the first GPU, or cpu]", as_index=False),
        click.option("--time-only", is_flag=True, help="Do not measure energy."),
        click.option(
            "--precision", "precision_text", default=PRECISION, show_default=True, metavar="SHARE",
            help="Repeat each operator until its median time is known within ± this share.",
        ),
        click.option(
            "--energy-coverage", default="90%", show_default=True, metavar="SHARE",
            help="Measure energy of the longest operators, which make up this share of a workload's time.",
        ),
        seed_option(),
        click.option("--allow-busy", is_flag=True, help="Measure even if other processes use the GPU."),
    )  # fmt: skip

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@dataclass(frozen=True)
class MeasureFlags(MeasuringFlags):
    """What the line of ``ops measure`` says."""

    workload_paths: tuple[str, ...]
    database_url: str
    time_limit: str | None
    as_json: bool


@click.command(
    "measure",
    epilog="""\b
Examples:
  gpuledger ops measure resnet50-inference-32x3x224x224 --time-only
  gpuledger ops measure *.workload.json --time-limit 10m --precision 2%""",
)
@workloads_argument()
@database_option()
@measuring_options()
@time_limit_option()
@json_option()
@takes(MeasureFlags)
def measure_command(flags: MeasureFlags) -> None:
    """Measure operators missing from the database.

    Measures the operators of the workloads that the database does not have for this GPU and software. Each result is
    stored at once: run the same command again to resume. An operator that fails is stored with the reason and not tried
    again. No other process should use the GPU.
    """
    budget_ns = None if flags.time_limit is None else parse_time_limit_ns(flags.time_limit)
    method = method_of(flags)
    workloads = [open_workload(text) for text in flags.workload_paths]
    from gpuledger.ops.database.operator_database import open_database
    from gpuledger.ops.measure.fill import fill
    from gpuledger.ops.measure.measured_device import find_device
    from gpuledger.ops.measure.names import name_kernels

    place = find_device(flags.device, force=flags.allow_busy)
    database = open_database(flags.database_url)
    with progress_bar() as on_progress:
        filled = fill(
            workloads,
            database,
            place,
            method,
            energy_share_frac=energy_coverage_of(flags),
            budget_ns=budget_ns,
            on_progress=on_progress,
        )
    name_kernels(database, place)
    if flags.as_json:
        print_json({"gpu": place.environment.card, "database": database.url, **filled_document(filled)})
        return
    print_lines([f"{place.environment.card}: {line}" for line in filled_lines(filled)])
    if filled.left:
        print_remarks(["Run the same command again to resume."])


def method_of(flags: MeasuringFlags) -> Method:
    """Return how the options want operators measured.

    Raises:
        UsageError: a share is none.
    """
    from gpuledger.ops.database.method import Method

    target_frac = parse_share("--precision", flags.precision_text)
    energy_coverage_of(flags)  # a wrong one is said before anything is done
    return Method(target_frac=target_frac, energy=not flags.time_only, seed=flags.seed)


def energy_coverage_of(flags: MeasuringFlags) -> float:
    """Return the share of a workload's time for which energy is measured.

    Raises:
        UsageError: it is not a share.
    """
    return parse_share("--energy-coverage", flags.energy_coverage)


def parse_share(option: str, text: str) -> float:
    """Return the share above 0 and up to 1 that an option was given.

    Raises:
        UsageError: it is not a share.
    """
    try:
        value_frac = parse_frac(text)
    except UsageError as error:
        raise UsageError(f"{option} {text}: not a share", hint=error.hint) from error
    if not 0 < value_frac <= 1:
        raise UsageError(f"{option} {text}: must be above 0 and at most 100 %", hint="Use a share such as 90% or 0.9")
    return value_frac


def parse_time_limit_ns(text: str) -> int:
    """Return the nanoseconds of a time limit; here ``m`` are minutes.

    Raises:
        UsageError: it is no time.
    """
    try:
        return parse_duration_ns(re.sub(r"(?<=[\d\s])m$", "min", text.strip()))
    except UsageError as error:
        raise UsageError(f"--time-limit {text}: not a time", hint="Use a time such as 90s or 10m") from error


@contextmanager
def progress_bar() -> Iterator[OnProgress | None]:
    """Show operators done, failed and the time left, on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.fields[operator]:<24.24}"), BarColumn(), TextColumn("{task.fields[said]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("operators", total=None, operator="", said="")

        def on_progress(progress: Progress) -> None:
            bar.update(
                shown, total=progress.total, completed=progress.done, operator=progress.operator, said=_said(progress)
            )

        yield on_progress


def _said(progress: Progress) -> str:
    left = "" if progress.left_ns is None else f", {format_ns(progress.left_ns)} left"
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{progress.done}/{progress.total}{failed}{left}"


def filled_lines(filled: Filled) -> list[str]:
    """Return what was measured, as lines."""
    lines = [_outcome_line("time", filled.times)]
    return lines if filled.energies is None else [*lines, _outcome_line("energy", filled.energies)]


def _outcome_line(what: str, outcome: Outcome) -> str:
    if not outcome.measured + outcome.failed + outcome.left:
        return f"{what}: nothing to measure, all operators are in the database"
    words = [f"{what}: {counted(outcome.measured, 'operator')} measured"]
    words += [f"{outcome.failed} failed"] if outcome.failed else []
    words += [f"{outcome.left} not yet measured"] if outcome.left else []
    words += [f"{outcome.repeated} measured twice"] if outcome.repeated else []
    if outcome.drift.readings > 1:
        words.append(f"speed drifted by at most {format_frac(outcome.drift.worst_frac)}")
    return ", ".join(words)


def filled_document(filled: Filled) -> dict[str, Any]:
    """Return what was measured, as a JSON value."""
    return {
        "time": _outcome_document(filled.times),
        "energy": None if filled.energies is None else _outcome_document(filled.energies),
    }


def _outcome_document(outcome: Outcome) -> dict[str, Any]:
    return {
        **{name: getattr(outcome, name) for name in ("measured", "failed", "left", "repeated")},
        "reference_worst_frac": outcome.drift.worst_frac,
        "reference_total_frac": outcome.drift.total_frac,
    }
