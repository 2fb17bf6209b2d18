"""The command ``gpuledger``: which commands there are, and what the user sees when one fails."""

from __future__ import annotations

import importlib
import io
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import click
from click.exceptions import Abort, ClickException, NoArgsIsHelpError

from gpuledger._version import __version__
from gpuledger.cli.streams import open_closed_streams
from gpuledger.errors import GpuLedgerError, UsageError
from gpuledger.redact import hide_credentials

INTERRUPTED = 130
FAILURE = 1


@dataclass(frozen=True)
class Entry:
    """Where a command lives (``module:function``, below ``gpuledger.cli``), and its line in the list of commands."""

    place: str
    section: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "run": Entry("record.run:run_command", "Record", "Record where a program's bytes, time and joules go."),
    "estimate": Entry(
        "predict.estimate:estimate_command",
        "Predict",
        "Tell whether a program fits a GPU that is not here.",
    ),
    "gpus": Entry("predict.gpus:gpus_command", "Predict", "List the GPUs an estimate can be made for."),
    "calibrate": Entry(
        "record.calibrate:calibrate_command",
        "Predict",
        "Measure what context and libraries take on this GPU.",
    ),
    "ops": Entry("ops.group:ops_group", "Predict", "Measure operators once, add them up for any model."),
    "watch": Entry("record.watch:watch_command", "Record", "Watch the GPUs while any command runs."),
    "show": Entry("inspect.show:show_command", "Look", "Show where the bytes are at one instant."),
    "group": Entry("inspect.group:group_command", "Look", "Put every byte into a group of keywords."),
    "balance": Entry("inspect.balance:balance_command", "Look", "Balance the GPU's used bytes, line by line."),
    "report": Entry("inspect.report:report_command", "Look", "Write one offline HTML file."),
    "trace": Entry("inspect.trace:trace_command", "Look", "Write a trace for Perfetto: kernels, bytes, watts."),
    "plot": Entry("inspect.plot:plot_command", "Look", "Draw runs as one picture."),
    "compare": Entry("compare.compare:compare_command", "Compare", "Compare several runs' peaks, times and joules."),
    "live": Entry("record.live:live_command", "Look", "Look at the GPUs, and at a run while it is written."),
    "diff": Entry("compare.diff:diff_command", "Compare", "Show what grew and what shrank between two runs."),
    "check": Entry("compare.check:check_command", "Compare", "Hold a run to a budget, or to another run."),
    "budget": Entry("compare.budget:budget_command", "Compare", "Write a first budget for a run."),
    "import": Entry("inspect.import_:import_command", "Take in", "Make runs of files that others wrote."),
    "export": Entry("inspect.export:export_command", "Take out", "Write a run's tables as CSV, Parquet or JSON."),
    "sql": Entry("inspect.sql:sql_command", "Take out", "Ask a run's tables with SQL, read-only."),
    "doctor": Entry("record.doctor:doctor_command", "This machine", "Tell what works here, and what to do."),
}
"""Commands in the order of ``--help``. A command's module is imported when the command is used."""


class Commands(click.Group):
    """A group that imports a command when it is used and ends every error in one place."""

    entries = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module, name = entry.place.split(":")
        command: click.Command = getattr(importlib.import_module(f"gpuledger.cli.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that ``args`` begin with; a wrong one is told which are near."""
        if args and args[0] not in self.entries and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.entries, 1)
            meant = f"{ctx.command_path} {near[0]} …" if near else f"one of {', '.join(self.entries)}"
            raise UsageError(f"no command {args[0]!r}", hint=f"try {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their sections."""
        for section in dict.fromkeys(entry.section for entry in self.entries.values()):
            rows = [(name, entry.summary) for name, entry in self.entries.items() if entry.section == section]
            with formatter.section(section):
                formatter.write_dl(rows, col_max=10)

    def main(  # type: ignore[override]  # the mode is not the caller's: it is always the one that leaves
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command line and leave with its exit code."""
        open_closed_streams()
        state = extra.setdefault("obj", {})
        extra["standalone_mode"] = False
        _print_any_name()
        try:
            result = super().main(args, prog_name or "gpuledger", **extra)
        except Exception as error:
            if state.get("verbose"):
                traceback.print_exc()
            result = tell(error)
        code = result if isinstance(result, int) else 0
        sys.exit(code or state.get("exit_code", 0))


def _print_any_name() -> None:
    """Let stdout take names of files that are not valid text: their bytes are escaped, as stderr does it."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def tell(error: Exception) -> int:
    """Return the exit code for ``error`` after writing it to stderr as one line and a hint."""
    if isinstance(error, Abort):
        return INTERRUPTED
    if isinstance(error, NoArgsIsHelpError):
        error.show()
        return error.exit_code
    message, hint, code = _describe(error)
    message, hint = hide_credentials(message), None if hint is None else hide_credentials(hint)
    from gpuledger.report.base.terminal import Terminal

    terminal = Terminal.of(sys.stderr)
    click.echo(terminal.text(f"gpuledger: error: {message}"), err=True)
    if hint:
        click.echo(terminal.text(f"  hint: {hint}"), err=True)
    return code


def _describe(error: Exception) -> tuple[str, str | None, int]:
    if isinstance(error, GpuLedgerError):
        return error.message, error.hint, error.exit_code
    if isinstance(error, ClickException):
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "gpuledger"
        message = " ".join(error.format_message().split()).rstrip(".")
        return message[:1].lower() + message[1:], f"{path} --help", error.exit_code
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}", None, FAILURE
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return words, "this is a defect of gpuledger: please report it with the output of gpuledger -v …", FAILURE


def _remember_verbose(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(dict)["verbose"] = True


@click.command(
    "gpuledger",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  gpuledger run train.py --epochs 1
  gpuledger show train.ledger --by module""",
)
@click.version_option(__version__, prog_name="gpuledger", message="%(prog)s %(version)s")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_remember_verbose,
    help="Show the traceback of an error.",
)
def main() -> None:
    """Every byte, millisecond and joule of a GPU run, on the account of the layer that spent it."""
