"""``gpuledger ops compare``: sums of operators beside whole models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import (
    force_option,
    gpu_option,
    json_option,
    output_option,
    print_json,
    print_lines,
    print_notes,
    takes,
)
from gpuledger.cli.inspect.report import choose_file, write_bytes
from gpuledger.cli.ops.capture import say_left_out
from gpuledger.cli.ops.common import database_option, table_lines, trust_files_option
from gpuledger.cli.ops.measure import (
    MeasuringFlags,
    energy_coverage_of,
    measuring_options,
    method_of,
    progress_bar,
)
from gpuledger.errors import GpuLedgerError, UsageError
from gpuledger.services.sums import open_workload
from gpuledger.units import DASH, format_bytes, format_frac, format_joules, format_ns

if TYPE_CHECKING:
    from gpuledger.ops.totals.compare import Pair, SumErrors
    from gpuledger.ops.workloads.workload import Workload
    from gpuledger.ops.workloads.workload_spec import WorkloadSpec


@dataclass(frozen=True)
class CompareFlags(MeasuringFlags):
    """What the line of ``ops compare`` says."""

    workload_paths: tuple[str, ...]
    trust_files: bool
    database_url: str
    output: str | None
    force: bool
    recorded: bool
    gpu: str | None
    as_json: bool


@click.command(
    "compare",
    epilog="""\b
Examples:
  gpuledger ops compare resnet50-inference-32x3x224x224
  gpuledger ops compare --recorded --gpu A30""",
)
@click.argument("workload_paths", metavar="WORKLOAD…", nargs=-1)
@trust_files_option()
@database_option()
@measuring_options()
@output_option("Also plot the comparison into this file: .png, .svg or .pdf.")
@force_option()
@click.option("--recorded", is_flag=True, help="Use whole models of the database instead of measuring them.")
@gpu_option("With --recorded: GPU in the database.  [default: the one measured last]")
@json_option()
@takes(CompareFlags)
def compare_command(flags: CompareFlags) -> None:
    """Compare sums of operators with whole models.

    Measures whole models on this machine and compares each with the sum of its operators. Operators missing from the
    database are measured first.

    The column "busy / graph" compares the operators without launch overhead with the model replayed as a CUDA graph.

    With --recorded, nothing is measured: whole models are those that `ops import` read. Without WORKLOAD, each of them
    is captured by its name.
    """
    if not flags.workload_paths and not flags.recorded:
        raise UsageError("compare: WORKLOAD is missing", hint="Write one with: gpuledger ops capture")
    if flags.gpu is not None and not flags.recorded:
        raise UsageError(
            "compare: --gpu needs --recorded", hint="Give --device to measure on another GPU of this machine"
        )
    method = method_of(flags)
    place_of_picture = None if flags.output is None else _picture(flags.output, force=flags.force)
    workloads = [open_workload(text) for text in flags.workload_paths]
    if flags.recorded:
        _compare_recorded(flags, workloads, place_of_picture)
        return
    from gpuledger.ops.measure.measured_device import find_device
    from gpuledger.services.campaign import compare_workloads

    place = find_device(flags.device, force=flags.allow_busy)
    pairs = compare_workloads(
        workloads,
        place,
        flags.database_url,
        method=method,
        energy_share_frac=energy_coverage_of(flags),
        trusted=flags.trust_files,
        progress=progress_bar,
    )
    if flags.as_json:
        from gpuledger.ops.totals.compare import pairs_document

        print_json(pairs_document(pairs, place.environment.to_json()))
    else:
        print_lines([place.environment.card, *lines_of(pairs)])
    if place_of_picture is not None:
        draw_pairs_into(pairs, place_of_picture, place.environment.card)


def _compare_recorded(flags: CompareFlags, workloads: Sequence[Workload], place_of_picture: Path | None) -> None:
    from gpuledger.ops.database.readable import open_readable
    from gpuledger.ops.predict.choose import open_environment_records
    from gpuledger.ops.totals.compare import pairs_document
    from gpuledger.services.campaign import compare_recorded
    from gpuledger.services.workloads import refuse_left_out

    shelf = open_environment_records(open_readable(flags.database_url), flags.gpu)
    failures: list[str] = []

    def say_failed(wanted: WorkloadSpec, error: GpuLedgerError) -> None:
        failures.append(error.message)
        say_left_out(wanted, error)

    pairs = compare_recorded(workloads, shelf, left_out=say_failed)
    if flags.as_json:
        print_json(pairs_document(pairs, shelf.environment.to_json()))
    elif pairs:
        print_lines([f"{shelf.environment.title}, whole models as recorded", *lines_of(pairs)])
    if place_of_picture is not None and pairs:
        draw_pairs_into(pairs, place_of_picture, shelf.environment.title)
    refuse_left_out(len(failures), len(pairs) + len(failures))


def _picture(output: str, *, force: bool) -> Path:
    from gpuledger.report.plots.plot_style import picture_suffix

    place = choose_file(output, output, force=force)
    picture_suffix(place)
    return place


def lines_of(pairs: Sequence[Pair]) -> list[str]:
    """Return the pairs as a table, and their errors."""
    from gpuledger.ops.totals.compare import busy_energy_errors, busy_time_errors, energy_errors, time_errors
    from gpuledger.report.base.terminal import TextColumn

    titles = (
        "workload", "sum", "whole", "sum / whole", "sum J", "whole J", "sum / whole J", "busy / graph",
        "busy / graph J", "calls measured",
    )  # fmt: skip
    columns = [TextColumn(title, right=place > 0, shrinks=place == 0) for place, title in enumerate(titles)]
    rows = tuple(
        (
            pair.name,
            format_ns(pair.sum.step_ns),
            format_ns(pair.whole.time_ns.median),
            format_frac(pair.time_frac),
            DASH if pair.sum.energy_j is None else format_joules(pair.sum.energy_j),
            DASH if pair.whole.energy_j is None else format_joules(pair.whole.energy_j.median),
            *(
                DASH if frac is None else format_frac(frac)
                for frac in (pair.energy_frac, pair.busy_time_frac, pair.busy_energy_frac)
            ),
            format_frac(pair.sum.calls_frac),
        )
        for pair in pairs
    )
    lines = table_lines(columns, rows)
    found = (
        ("time", time_errors(pairs)),
        ("energy", energy_errors(pairs)),
        ("time without launches", busy_time_errors(pairs)),
        ("energy without launches", busy_energy_errors(pairs)),
    )
    return [*lines, *(_errors_line(what, errors) for what, errors in found if errors is not None)]


def _errors_line(what: str, errors: SumErrors) -> str:
    return (
        f"{what}: mean error {format_frac(errors.mean_frac)}, largest {format_frac(errors.worst_frac)}, "
        f"bias {errors.bias_frac * 100:+.1f} %"
    )


def draw_pairs_into(pairs: Sequence[Pair], place: Path, card: str) -> None:
    """Draw the pairs as bars into a file.

    Raises:
        UsageError: matplotlib is not installed.
    """
    from gpuledger.report.plots.plot_style import picture_suffix
    from gpuledger.services.campaign import draw_pairs

    written = write_bytes(place, draw_pairs(pairs, card, picture_suffix(place)))
    print_notes([f"gpuledger: wrote {place} ({format_bytes(written)})"])
