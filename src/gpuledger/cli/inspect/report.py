"""``gpuledger report``: a run as one HTML file that opens by double click."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import (
    choose_ranks,
    fit_option,
    force_option,
    gpus_for,
    open_run,
    output_option,
    print_notes,
    rank_option,
    run_argument,
)
from gpuledger.errors import GpuLedgerError, UsageError
from gpuledger.files.writing import is_special, is_taken
from gpuledger.files.writing import output as written_to
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run


@click.command(
    "report",
    epilog="""\b
Examples:
  gpuledger report train.ledger --open
  gpuledger report train.ledger --rank 0 -o rank-0.html""",
)
@run_argument()
@output_option("File to write.  [default: NAME.html in the current directory]")
@click.option("--open", "open_after", is_flag=True, help="Open the report in your browser.")
@fit_option()
@rank_option()
@force_option()
def report_command(
    run_path: str, output: str | None, open_after: bool, fit_bytes: int | None, rank_text: str | None, force: bool
) -> None:
    """Write an HTML report of a run as one file.

    The report shows the GPUs, the memory timeline, tables by module, the balance, notes and how the run was recorded.
    It opens in any browser without a network connection. The path is printed to stdout.
    """
    run = open_run(run_path)
    ranks = choose_ranks(run, rank_text)
    place = choose_file(output, f"{run.name}.html", force=force)
    written = write_text(place, _page(run, ranks, fit_bytes))
    echo_path(place)
    print_notes([f"gpuledger: wrote {place} ({format_bytes(written)}), open it in any browser"])
    if open_after and not webbrowser.open(place.absolute().as_uri()):
        raise GpuLedgerError(f"{place}: could not start a browser", hint="Open the file in a browser")


def _page(run: Run, ranks: tuple[Rank, ...], fit_bytes: int | None) -> str:
    """Return the report of a run: of times per layer a page of tables, of all else the page that shows bytes."""
    from gpuledger.analyze.step.time_logs import is_time_log, read_time_log

    if is_time_log(run):
        from gpuledger.report.html.time_log_page import render_time_log

        notes = dict.fromkeys(note for rank in run.ranks for note in rank.manifest.notes)
        return render_time_log(read_time_log(run), list(notes))
    from gpuledger.analyze.view.options import ViewOptions
    from gpuledger.analyze.view.view import build_view
    from gpuledger.report.html.report_page import render_html

    return render_html(build_view(run, ViewOptions(fit_bytes=fit_bytes, gpus=gpus_for(run)), ranks=ranks))


def choose_file(output: str | None, default: str, *, force: bool, option: str = "--force") -> Path:
    """Return the file to write; nothing is created. ``option`` is what the command calls ``force``.

    A device, a pipe or ``/dev/stdout`` may be there already: what is written goes into it.

    Raises:
        UsageError: it exists and ``force`` is not given, or it is a directory.
    """
    place = Path(output or default)
    if place.is_dir():
        raise UsageError(f"{place}: is a directory", hint=f"Use -o {place / default}")
    if is_taken(place) and not force:
        raise UsageError(f"{place}: already exists", hint=f"Choose another name with -o, or overwrite it with {option}")
    return place


def write_text(place: Path, text: str) -> int:
    """Return the bytes written; see :func:`write_bytes`."""
    return write_bytes(place, text.encode("utf-8"))


def write_bytes(place: Path, content: bytes) -> int:
    """Return the bytes written to the file that the user named; see :func:`gpuledger.files.writing.output`."""
    with written_to(place) as stream:
        return stream.write(content)


def echo_path(place: Path) -> None:
    """Print where a file was written; a device or a pipe, which may be stdout itself, gets nothing else."""
    if not is_special(place):
        click.echo(place)
