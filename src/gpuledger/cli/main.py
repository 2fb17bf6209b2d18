"""The command ``gpuledger``: which commands there are, and what the user sees when one fails."""

from __future__ import annotations

import importlib
import io
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import click
from click.exceptions import Abort, ClickException, NoArgsIsHelpError, NoSuchOption

from gpuledger._version import __version__
from gpuledger.cli.streams import READER_GONE, leave_closed_pipes, open_closed_streams
from gpuledger.errors import GpuLedgerError, UsageError
from gpuledger.redact import hide_credentials

RECORD, ESTIMATE, VIEW, COMPARE = "Record", "Estimate", "View", "Compare"
EXCHANGE, MACHINE = "Import and export", "This machine"
INTERRUPTED = 130
FAILURE = 1


@dataclass(frozen=True)
class CommandEntry:
    """A command: its function (``module:function`` in ``gpuledger.cli``), section and first line of help."""

    place: str
    section: str
    summary: str


COMMANDS: dict[str, CommandEntry] = {
    "run": CommandEntry(
        "record.run:run_command", RECORD, "Record the memory, time and energy of a program, layer by layer."
    ),
    "watch": CommandEntry("record.watch:watch_command", RECORD, "Record GPU memory and power while any command runs."),
    "estimate": CommandEntry(
        "predict.estimate:estimate_command",
        ESTIMATE,
        "Estimate GPU memory of a training script without running it.",
    ),
    "what-if": CommandEntry(
        "predict.what_if:what_if_command", ESTIMATE, "Compare allocator settings on a recorded run, without a GPU."
    ),
    "gpus": CommandEntry("predict.gpus:gpus_command", ESTIMATE, "List the GPU models that estimates can be made for."),
    "ops": CommandEntry(
        "ops.group:ops_group", ESTIMATE, "Estimate time and energy of a model from measured operators."
    ),
    "show": CommandEntry(
        "inspect.show:show_command", VIEW, "Show memory, time and energy of a run by category or layer."
    ),
    "group": CommandEntry("inspect.group:group_command", VIEW, "Sum the memory of a run into groups that you define."),
    "balance": CommandEntry("inspect.balance:balance_command", VIEW, "Break down all memory in use on the GPU."),
    "report": CommandEntry("inspect.report:report_command", VIEW, "Write an HTML report of a run as one file."),
    "trace": CommandEntry("inspect.trace:trace_command", VIEW, "Write a timeline of a run for Perfetto or Chrome."),
    "plot": CommandEntry("inspect.plot:plot_command", VIEW, "Plot one or more runs as a picture."),
    "live": CommandEntry("record.live:live_command", VIEW, "Monitor GPUs and a running job."),
    "compare": CommandEntry(
        "compare.compare:compare_command", COMPARE, "Compare memory, time and energy of several runs."
    ),
    "diff": CommandEntry("compare.diff:diff_command", COMPARE, "Show what changed between two runs."),
    "check": CommandEntry("compare.check:check_command", COMPARE, "Check a run against limits or against another run."),
    "budget": CommandEntry("compare.budget:budget_command", COMPARE, "Write a limits file from measured runs."),
    "import": CommandEntry("inspect.import_:import_command", EXCHANGE, "Convert recordings of other tools into runs."),
    "export": CommandEntry(
        "inspect.export:export_command", EXCHANGE, "Export a run as tables or as a PyTorch snapshot."
    ),
    "merge": CommandEntry(
        "inspect.merge:merge_command", EXCHANGE, "Combine the runs that several hosts recorded of one job."
    ),
    "sql": CommandEntry("inspect.sql:sql_command", EXCHANGE, "Query the tables of a run with SQL."),
    "doctor": CommandEntry("record.doctor:doctor_command", MACHINE, "Check what can be recorded on this machine."),
    "calibrate": CommandEntry(
        "record.calibrate:calibrate_command", MACHINE, "Measure the memory that CUDA uses on this GPU."
    ),
}
"""Commands in the order of ``--help``. A command's module is imported when the command is used."""


class BrokenPipe(Exception):  # noqa: N818 - not an error where it is the reader of the output that left
    """A BrokenPipeError under a name that click does not know: it ends the process with 1 and says nothing."""

    def __init__(self, error: BrokenPipeError) -> None:
        super().__init__(str(error))
        self.error = error


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
        """Return the command in ``args``. For an unknown one, the error suggests similar names."""
        if args and args[0] not in self.entries and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.entries, 1)
            hint = f"Did you mean {ctx.command_path} {near[0]}?" if near else f"Use one of {', '.join(self.entries)}"
            if args[0].endswith(".py") and "run" in self.entries:
                hint = f"{ctx.command_path} run {shlex.join(args)}"
            raise UsageError(f"unknown command {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their sections."""
        for section in dict.fromkeys(entry.section for entry in self.entries.values()):
            rows = [(name, entry.summary) for name, entry in self.entries.items() if entry.section == section]
            with formatter.section(section):
                formatter.write_dl(rows, col_max=10)

    def make_context(self, *words: Any, **extra: Any) -> click.Context:
        """Return the command's context; ``--help`` prints here."""
        with _named_pipes():
            return super().make_context(*words, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Return what the command returns."""
        with _named_pipes():
            try:
                result = super().invoke(ctx)
            except click.UsageError as error:
                name = ctx.invoked_subcommand
                command = self.get_command(ctx, name) if error.ctx is None and name else None
                if command is not None:
                    # click forgets the command of an option without its argument.
                    error.ctx = click.Context(command, ctx, name)
                raise
            sys.stdout.flush()
            return result

    def main(  # type: ignore[override]  # the mode is not the caller's: it is always the one that leaves
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command line and exit with its status."""
        open_closed_streams()
        state = extra.setdefault("obj", {})
        extra["standalone_mode"] = False
        _print_any_name()
        try:
            result = super().main(args, prog_name or "gpuledger", **extra)
        except BrokenPipe as broken:
            result = READER_GONE if leave_closed_pipes() else report_error(broken.error)
        except Exception as error:
            if state.get("verbose"):
                traceback.print_exc()
            result = report_error(error)
        code = result if isinstance(result, int) else 0
        sys.exit(code or state.get("exit_code", 0))


@contextmanager
def _named_pipes() -> Iterator[None]:
    """Raise a BrokenPipeError of the block as :class:`BrokenPipe`."""
    try:
        yield
    except BrokenPipeError as error:
        raise BrokenPipe(error) from error


def _print_any_name() -> None:
    """Let stdout take names of files that are not valid text: their bytes are escaped, as stderr does it."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def report_error(error: Exception) -> int:
    """Write ``error`` to stderr as one line with a hint. Return the exit status."""
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
        if isinstance(error, NoSuchOption) and (near := _near_options(error)):
            return f"no such option '{error.option_name}'", f"Did you mean {' or '.join(near)}?", error.exit_code
        message = " ".join(error.format_message().split()).rstrip(".")
        return message[:1].lower() + message[1:], f"{path} --help", error.exit_code
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}", None, FAILURE
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return words, "Please report this bug of gpuledger, with the output of: gpuledger -v …", FAILURE


def _near_options(error: NoSuchOption) -> list[str]:
    """Return at most two options of the command with names like the unknown one, the most similar first."""
    from difflib import get_close_matches

    return get_close_matches(error.option_name, error.possibilities or (), 2)


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
    help="Print the traceback of an error.",
)
def main() -> None:
    """Measure where GPU memory, time and energy go in PyTorch programs, layer by layer.

    Use `gpuledger COMMAND --help` for the options of a command. Wherever a command expects a RUN, give the directory
    NAME.ledger that `gpuledger run` wrote, or a file that `gpuledger import` can read.

    Exit status: 0 success, 1 failure, 2 wrong usage, 3 unreadable input, 4 no usable GPU, 5 limit exceeded.
    """
