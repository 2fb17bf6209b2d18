"""``gpuledger ops accuracy``: how far off predictions are."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import gpu_option, json_option, print_json, print_lines, print_notes
from gpuledger.cli.ops.common import note_if_shipped, read_database_option
from gpuledger.services.sums import open_workload
from gpuledger.units import DASH, format_frac

if TYPE_CHECKING:
    from gpuledger.ops.predict.accuracy import Accuracy, Errors


@click.command(
    "accuracy",
    epilog="""\b
Examples:
  gpuledger ops accuracy
  gpuledger ops accuracy --hold-out resnet50-inference-32x3x224x224""",
)
@read_database_option()
@gpu_option("GPU model in the database.  [default: the GPU measured last]")
@click.option(
    "--hold-out",
    "held_out",
    multiple=True,
    metavar="WORKLOAD",
    help="Predict this model without its own operators; repeatable.",
)
@json_option()
def accuracy_command(database_url: str | None, gpu: str | None, held_out: tuple[str, ...], as_json: bool) -> None:
    """Show how accurate the predictions are.

    Errors are listed by operator type, for models given with --hold-out, and for sizes beyond the measured range. Each
    operator is predicted from a model that was fitted without it, and without the same layer at other batch sizes.
    Fitting takes minutes if the database is large.

    The columns from "mean" to "worst" are errors of the time, "90 %" the error that 90 % of the operators do not
    exceed. "in interval" is the share of operators with a time inside their 90 % interval. "power" is the mean error of
    the power.
    """
    workloads = [open_workload(text) for text in held_out]
    from gpuledger.ops.database.shipped import open_or_shipped
    from gpuledger.ops.predict.accuracy import validate
    from gpuledger.ops.predict.choose import open_environment_records, roof_of_records

    note_if_shipped(database_url)
    shelf = open_environment_records(open_or_shipped(database_url), gpu)
    print_notes([f"gpuledger: fitting models to {len(shelf.examples):,} measurements"])
    found = validate(shelf.examples, roof_of_records(shelf), workloads)
    if as_json:
        print_json(asdict(found))
        return
    print_lines(_lines(found))


def _lines(found: Accuracy) -> list[str]:
    from gpuledger.report.base.terminal import Terminal, TextColumn, TextTable

    terminal = Terminal.of(sys.stdout)
    titles = ("held out", "count", "mean", "median", "90 %", "worst", "in interval", "power")
    columns = tuple(TextColumn(title, right=place > 0) for place, title in enumerate(titles))
    beyond = [found.beyond, *found.beyond_by_size] if found.beyond else []
    errors = [found.unseen, *beyond, *found.by_type]
    lines = [f"{found.card}: {found.examples:,} measured operators, {found.groups:,} families of shapes", ""]
    lines += TextTable(columns, tuple(_row(one) for one in errors)).lines(terminal)
    if found.models:
        of_models = ("held-out model", "mode", "time", "energy", "calls measured")
        columns = tuple(TextColumn(title, right=place > 1) for place, title in enumerate(of_models))
        rows = tuple(
            (one.name, one.mode, _signed(one.time_frac), _signed(one.energy_frac), format_frac(one.covered_frac))
            for one in found.models
        )
        lines += ["", *TextTable(columns, rows).lines(terminal)]
    return lines


def _row(one: Errors) -> tuple[str, ...]:
    power = DASH if one.power_mean_frac is None else format_frac(one.power_mean_frac)
    shares = (one.mean_frac, one.median_frac, one.p90_frac, one.worst_frac, one.inside_frac)
    return (one.name, f"{one.count:,}", *map(format_frac, shares), power)


def _signed(value_frac: float | None) -> str:
    return DASH if value_frac is None else f"{value_frac * 100:+.1f} %"
