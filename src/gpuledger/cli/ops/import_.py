"""``gpuledger ops import``: operator lists and result rows that others wrote."""

from __future__ import annotations

from pathlib import Path

import click

from gpuledger.cli.common import force_option, gpu_option, output_option, print_lines, print_notes, unread_lines
from gpuledger.cli.ops.common import database_option
from gpuledger.errors import InputError, UsageError
from gpuledger.units import counted

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".pkl.xz", ".joblib")


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
@output_option("Folder for the workload files.", "DIR", ".")
@force_option()
@database_option()
def import_command(
    form: str, files: tuple[str, ...], gpu: str | None, output: str, force: bool, database_url: str
) -> None:
    """Import operator lists and results of other tools.

    tritonbench: each list of operator inputs becomes a workload file.

    printed-rows: the rows that ml-operator-profiling printed become records of the database.

    Pickle files are refused, because they can run code when they are read. Exits with status 3 if a row could not be
    read.
    """
    for file in files:
        if file.lower().endswith(PICKLES):
            raise InputError(
                f"{file}: a pickle file can run code when it is read", hint="import the printed rows instead"
            )
    if form == "tritonbench":
        from gpuledger.services.workloads import import_lists

        for place, workload in import_lists([Path(file) for file in files], Path(output), replace=force):
            print_lines([f"{place}: {len(workload.uses):,} distinct operators in {workload.calls:,} calls"])
        return
    if gpu is None:
        raise UsageError(
            "import printed-rows: --gpu is missing", hint='give the GPU of the measurements, such as --gpu "NVIDIA A30"'
        )
    _import_rows([Path(file) for file in files], gpu, database_url)


def _import_rows(paths: list[Path], card: str, database_url: str) -> None:
    from gpuledger.ops.database.operator_database import open_database
    from gpuledger.ops.exchange.import_rows import read_rows

    found = read_rows(paths, card)
    if not found.records:
        raise InputError(f"{paths[0]}: no row could be read", hint=next(iter(found.unread), None))
    with open_database(database_url) as database:
        database.put_keys(found.keys)
        database.put_environment(found.environment)
        database.put_records(found.records)
    print_lines([f"{counted(len(found.records), 'record')} of {counted(len(found.keys), 'operator')} on {card}"])
    print_notes(unread_lines(found.unread))
    if found.unread:
        click.get_current_context().find_root().ensure_object(dict)["exit_code"] = InputError.exit_code
