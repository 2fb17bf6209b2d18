"""``gpuledger ops sum``: a workload's time and energy, added up from the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import gpu_option, json_option, print_json, print_lines, print_notes, rows_option, takes
from gpuledger.cli.ops.common import (
    fit_bar,
    input_option,
    note_if_shipped,
    print_remarks,
    print_safe,
    read_database_option,
    table_lines,
    train_option,
)
from gpuledger.cli.ops.measure import (
    MeasuringFlags,
    energy_coverage_of,
    measuring_options,
    method_of,
    parse_share,
    progress_bar,
)
from gpuledger.config import DEFAULT_DATABASE
from gpuledger.errors import BudgetExceededError, UsageError
from gpuledger.units import DASH, counted, format_frac, format_joules, format_ns

if TYPE_CHECKING:
    from gpuledger.ops.totals.sum import Sum
    from gpuledger.ops.totals.type_totals import TypeTotal
    from gpuledger.services.sums import Summed

NEXT_SHOWN = 10
ROWS = 20


@dataclass(frozen=True)
class SumFlags(MeasuringFlags):
    """What the line of ``ops sum`` says."""

    models: tuple[str, ...]
    database_url: str | None
    gpu: str | None
    batch: int | None
    inputs: tuple[str, ...]
    train: bool
    only: str | None
    min_coverage: str | None
    measure_missing: bool
    rows: int
    as_json: bool


@click.command(
    "sum",
    epilog="""\b
Examples:
  gpuledger ops sum torchvision:resnet50 --batch 32
  gpuledger ops sum vit_b_16.workload.json --only linear --min-coverage 90%""",
)
@click.argument("models", metavar="MODEL|WORKLOAD…", nargs=-1, required=True)
@read_database_option()
@gpu_option("GPU model in the database.  [default: the GPU measured last]")
@click.option(
    "--batch", type=click.IntRange(min=1), metavar="N", help="Batch size of a model given by name.  [default: 32]"
)
@input_option()
@train_option()
@click.option("--only", metavar="TYPE,…", help="Count only operators of these names, or in layers of these types.")
@click.option(
    "--min-coverage",
    metavar="SHARE",
    help="Exit with status 5 if measurements cover less of the time or energy, such as 90%.  [default: no limit]",
)
@click.option(
    "--measure-missing",
    is_flag=True,
    help="Measure missing operators, largest expected share first, until --min-coverage is reached.",
)
@rows_option(ROWS)
@measuring_options()
@json_option()
@takes(SumFlags)
def sum_command(flags: SumFlags) -> None:
    """Sum the measured time and energy of a workload.

    Shows the totals and a row for each operator type. The interval of a total is that of the whole model (90 %), the
    intervals of the rows are those of the measurements (95 %). There is no total if less than 95 % of the calls are
    measured. A model given by name, such as torchvision:resnet50, is captured first. Operators missing from the
    database are counted but not summed. The covered share of time and energy is estimated by predicting them.
    """
    target_frac = None if flags.min_coverage is None else parse_share("--min-coverage", flags.min_coverage)
    if flags.measure_missing and target_frac is None:
        raise UsageError("sum: --measure-missing needs --min-coverage", hint="Add --min-coverage 90%")
    from gpuledger.services.sums import asked_of

    asked = [
        asked_of(text, flags.batch, train=flags.train, inputs=shape)
        for text in flags.models
        for shape in flags.inputs or (None,)
    ]
    types = None if flags.only is None else [name for name in flags.only.split(",") if name.strip()]
    from gpuledger.ops.database.operator_database import open_database
    from gpuledger.ops.database.shipped import open_or_shipped
    from gpuledger.ops.measure.measured_device import find_device
    from gpuledger.ops.predict.choose import open_environment_records
    from gpuledger.services.sums import Measuring, measure_until, sum_workloads

    if flags.measure_missing and target_frac is not None:
        place, method = find_device(flags.device, force=flags.allow_busy), method_of(flags)
        measuring = Measuring(
            open_database(flags.database_url or DEFAULT_DATABASE), place, method, energy_coverage_of(flags)
        )
        summed = measure_until(asked, measuring, target_frac, types, progress=progress_bar, fitting=fit_bar)
    else:
        note_if_shipped(flags.database_url)
        records = open_environment_records(open_or_shipped(flags.database_url), flags.gpu)
        summed = sum_workloads(asked, records, types, fitting=fit_bar)
    if flags.as_json:
        print_json([_document(one) for one in summed])
    else:
        for number, one in enumerate(summed):
            print_safe([""] if number else [])
            _print(one, flags.rows)
    if target_frac is not None:
        _hold(summed, target_frac)


def _hold(summed: Sequence[Summed], target_frac: float) -> None:
    """Name the next operators by expected gain, and fail, where a workload is below the target."""
    below = [one for one in summed if not one.coverage.meets(target_frac)]
    for one in below:
        lines = [f"{one.workload.name}: operators to measure next, by expected gain:"]
        for following in one.coverage.needed(target_frac)[:NEXT_SHOWN]:
            energy = "" if following.energy_frac is None else f", {format_frac(following.energy_frac)} of the energy"
            use = following.line.use
            lines.append(f"  +{format_frac(following.time_frac)} of the time{energy}: {use.count} × {use.key.text}")
        print_notes(lines)
    if below:
        names = ", ".join(one.workload.name for one in below)
        raise BudgetExceededError(
            f"{names}: less than {format_frac(target_frac, 0)} covered by measurements",
            hint="Use --measure-missing, or run gpuledger ops measure WORKLOAD",
        )


def _print(one: Summed, rows: int) -> None:
    """Print one sum; what of its types is not shown is said."""
    from gpuledger.ops.totals.type_totals import by_type

    types = by_type(one.total)
    print_safe([*_head_lines(one), ""])
    print_lines(_type_lines(types[:rows]))
    if len(types) > rows:
        print_remarks([f"{counted(len(types) - rows, 'more type')} of operators: -n or --json print them."])


def _head_lines(one: Summed) -> list[str]:
    total = one.total
    card = total.environment.title if total.environment is not None else ""
    return [
        f"{total.workload.name} on {card}: {_total_text(total)}",
        _share_line(one),
        *_interval_lines(total),
        *_around_lines(total),
        *(f"note: {note}" for note in total.notes),
    ]


def _total_text(total: Sum) -> str:
    """Return time and energy; or why there is no total."""
    from gpuledger.ops.totals.coverage import TOTAL_FRAC, has_total

    if not total.calls_frac:
        return "nothing measured"
    if not has_total(total):
        return f"no total, because less than {format_frac(TOTAL_FRAC, 0)} of the calls are measured"
    return _cost_text(total, *_halves(total))


def _halves(total: Sum) -> tuple[float | None, float | None]:
    """Return half the intervals of time in ns and energy in J: of the whole model, or of the measurements of a part."""
    from gpuledger.ops.totals.whole_interval import interval_of_whole

    interval = interval_of_whole(total)
    if interval is None:
        return total.busy_half_ns, total.energy_half_j
    return interval.time_half_ns, interval.energy_half_j


def _cost_text(total: Sum, half_ns: float | None, half_j: float | None) -> str:
    time = format_ns(total.step_ns, half_ns)
    return time if total.energy_j is None else f"{time}, {format_joules(total.energy_j, half_j)}"


def _interval_lines(total: Sum) -> list[str]:
    from gpuledger.ops.totals.whole_interval import LEVEL_FRAC, interval_of_whole

    interval = interval_of_whole(total)
    if interval is None:
        return []
    return [f"±: {format_frac(LEVEL_FRAC, 0)} interval of the eager model, from n = {interval.pairs} {interval.source}"]


def _type_lines(types: Sequence[TypeTotal]) -> list[str]:
    from gpuledger.report.base.terminal import TextColumn

    titles = ("operator", "calls", "distinct", "time", "energy", "not measured")
    columns = [TextColumn(title, right=place > 0, shrinks=place == 0) for place, title in enumerate(titles)]
    cells = [
        (
            kind.operator,
            f"{kind.count:,}",
            f"{kind.distinct:,}",
            DASH if kind.time_ns is None else format_ns(kind.time_ns, kind.time_half_ns),
            DASH if kind.energy_j is None else format_joules(kind.energy_j, kind.energy_half_j),
            f"{kind.unknown:,}" if kind.unknown else "",
        )
        for kind in types
    ]
    return table_lines(columns, cells)


def _around_lines(total: Sum) -> list[str]:
    if total.is_host_measured and total.host_ns is not None:
        return [f"CPU time of a step, measured on the model itself: {format_ns(total.host_ns)}"]
    around = total.around
    if around is None:
        return []
    words = f"{counted(around.module_calls, 'module call')}, {counted(around.autograd_nodes, 'autograd node')}"
    return [f"modules and autograd on the CPU: {format_ns(around.time_ns)} for {words}"]


def _share_line(one: Summed) -> str:
    from gpuledger.ops.totals.coverage import has_total, measured_calls_frac

    words = [f"measured: {format_frac(measured_calls_frac(one.total))} of the calls"]
    words.append(f"{format_frac(one.coverage.time_frac)} of the time")
    if one.coverage.energy_frac is not None:
        words.append(f"{format_frac(one.coverage.energy_frac)} of the energy")
    text = ", ".join(words)
    if has_total(one.total) or not one.total.calls_frac:
        return text
    return f"{text}; this part: {_cost_text(one.total, *_halves(one.total))}"


def _document(one: Summed) -> dict[str, Any]:
    from gpuledger.ops.totals.coverage import has_total, measured_calls_frac
    from gpuledger.ops.totals.type_totals import by_type
    from gpuledger.ops.totals.whole_interval import interval_of_whole

    total, coverage, interval = one.total, one.coverage, interval_of_whole(one.total)
    half_ns, half_j = _halves(total)
    return {
        "workload": total.workload.name,
        "mode": total.workload.mode,
        "environment": None if total.environment is None else total.environment.to_json(),
        "is_total": has_total(total),
        "time_ns": total.step_ns,
        "busy_ns": total.busy_ns,
        "queued_ns": total.queued_ns,
        "host_ns": total.host_ns,
        "is_host_measured": total.is_host_measured,
        "modules_and_autograd": None if total.around is None else vars(total.around),
        "half_interval_ns": half_ns,
        "energy_j": total.energy_j,
        "half_interval_j": half_j,
        "interval_pairs": None if interval is None else interval.pairs,
        "attributed": {
            "calls_frac": measured_calls_frac(total),
            "time_frac": coverage.time_frac,
            "energy_frac": coverage.energy_frac,
        },
        "is_capped": total.is_capped,
        "notes": list(total.notes),
        "by_type": [vars(kind) for kind in by_type(total)],
        "next": [
            {
                "operator": following.line.use.key.to_json(),
                "count": following.line.use.count,
                "time_frac": following.time_frac,
                "energy_frac": following.energy_frac,
            }
            for following in coverage.following
        ],
    }
