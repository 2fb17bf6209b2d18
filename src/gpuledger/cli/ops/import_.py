"""``gpuledger ops import``: operator lists and result rows that others wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import force_option, gpu_option, output_option, print_lines, print_notes, takes
from gpuledger.cli.ops.common import database_option, print_remarks
from gpuledger.errors import InputError, UsageError
from gpuledger.units import counted

if TYPE_CHECKING:
    from gpuledger.operator_key import OperatorKey
    from gpuledger.ops.exchange.printed_lines import UnreadLine

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".pkl.xz", ".joblib")
REASONS_SHOWN = 10


@dataclass(frozen=True)
class ImportFlags:
    """What the line of ``ops import`` says."""

    form: str
    files: tuple[str, ...]
    gpu: str | None
    tf32: str | None
    clock_mhz: int | None
    output: str
    force: bool
    database_url: str


@click.command(
    "import",
    epilog="""\b
Examples:
  gpuledger ops import tritonbench hf_train/BertForMaskedLM_training.txt
  gpuledger ops import printed-rows --gpu "NVIDIA A30" results_A30.txt""",
)
@click.argument("form", type=click.Choice(["tritonbench", "printed-rows"]), metavar="tritonbench|printed-rows")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@gpu_option("GPU model of the measurements; required for printed-rows.")
@click.option(
    "--tf32",
    type=click.Choice(["on", "off"]),
    help="Whether printed rows were measured with TF32.  [default: from the files, otherwise on]",
)
@click.option(
    "--clock",
    "clock_mhz",
    type=click.IntRange(min=1),
    metavar="MHZ",
    help="GPU clock of printed rows in MHz.  [default: from the files]",
)
@output_option("Folder for the workload files and the list of unread lines.", "DIR", ".")
@force_option()
@database_option()
@takes(ImportFlags)
def import_command(flags: ImportFlags) -> None:
    """Import operator lists and results of other tools.

    tritonbench: each list of operator inputs becomes a workload file.

    printed-rows: the rows that ml-operator-profiling printed become records of the database, for operators and for
    whole models. Lines that cannot be read are counted by reason and listed in a file.

    Pickle files are refused, because they can run code when they are read. Exits with status 3 if a line could not be
    read.
    """
    for file in flags.files:
        if file.lower().endswith(PICKLES):
            raise InputError(
                f"{file}: a pickle file can run code when it is read", hint="Import the printed rows instead"
            )
    if flags.form == "tritonbench":
        from gpuledger.services.workloads import import_lists

        paths = [Path(file) for file in flags.files]
        for place, workload in import_lists(paths, Path(flags.output), replace=flags.force):
            print_lines([f"{place}: {len(workload.uses):,} distinct operators in {workload.calls:,} calls"])
        return
    if flags.gpu is None:
        raise UsageError(
            "import printed-rows: --gpu is missing", hint='Give the GPU of the measurements, such as --gpu "NVIDIA A30"'
        )
    _import_rows(flags, flags.gpu)


def _import_rows(flags: ImportFlags, gpu: str) -> None:
    from gpuledger.services.workloads import import_rows, list_unread

    tf32 = None if flags.tf32 is None else flags.tf32 == "on"
    found = import_rows(
        [Path(file) for file in flags.files], gpu, flags.database_url, tf32=tf32, clock_mhz=flags.clock_mhz
    )
    titles = ", ".join(environment.title for environment in found.environments) or gpu
    if found.records:
        print_lines(
            [
                f"{counted(len(found.records), 'record')} of {_kinds_text(found.keys)} on {titles}, "
                f"from {counted(found.rows, 'row')}"
            ]
        )
    print_remarks(found.notes)
    if not found.unread and found.records:
        return
    print_notes(_unread_lines(found.unread))
    if found.unread:
        print_notes([f"gpuledger: list of unread lines: {list_unread(found.unread, Path(flags.output))}"])
    if not found.records:
        raise InputError(f"{flags.files[0]}: no row could be read", hint="Give the output of the tool's scripts")
    click.get_current_context().find_root().ensure_object(dict)["exit_code"] = InputError.exit_code


def _kinds_text(keys: Sequence[OperatorKey]) -> str:
    from gpuledger.ops.database.whole_models import whole_model_of

    models = sum(whole_model_of(key) is not None for key in keys)
    counts = ((len(keys) - models, "operator"), (models, "whole model"))
    return " and ".join(counted(count, what) for count, what in counts if count)


def _unread_lines(unread: Sequence[UnreadLine]) -> list[str]:
    """Return how many lines were not read for each reason, with the first place of each."""
    from gpuledger.ops.exchange.printed_lines import by_reason

    reasons = by_reason(unread)
    lines = [
        f"gpuledger: not read: {counted(len(found), 'line')}: {reason}: {found[0].path}:{found[0].line}"
        + (" and others" if len(found) > 1 else "")
        for reason, found in list(reasons.items())[:REASONS_SHOWN]
    ]
    rest = len(reasons) - REASONS_SHOWN
    return [*lines, f"gpuledger: not read: {counted(rest, 'more reason')}"] if rest > 0 else lines
