"""``gpuledger run``: record a program that does not know of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.errors import GpuLedgerError, UsageError

if TYPE_CHECKING:
    from gpuledger.collect.energy_meter import EnergyMeter
    from gpuledger.collect.launch import Order
    from gpuledger.collect.nvml import Nvml
    from gpuledger.collect.sampler import CardSampler
    from gpuledger.config import Setting

_LAUNCHER_BROKE = 125
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_WITH_VALUE = frozenset({"--steps", "--passes", "--out", "--devices"})


class RunCommand(click.Command):
    """Splits the line where the program's own begins: nothing after that is ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the program's words apart, and let click read ours."""
        ours, theirs = split_line(args)
        ctx.meta["gpuledger.program"] = theirs
        return super().parse_args(ctx, ours)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line's pieces."""
        return ["[OPTIONS]", "SCRIPT [ARGS]… | -m MODULE [ARGS]… | -- COMMAND [ARGS]…"]


def split_line(args: list[str]) -> tuple[list[str], list[str]]:
    """Return our options, and the program's words with what introduces them (``-m``, ``--``, or nothing)."""
    place = 0
    while place < len(args):
        word = args[place]
        if word in ("-m", "--", "-") or not word.startswith("-"):
            break
        place += 2 if word in _WITH_VALUE else 1
    return args[:place], args[place:]


def command_of(program: list[str]) -> tuple[tuple[str, ...], str]:
    """Return the command to start, and what the run is called when nobody names it.

    Raises:
        UsageError: nothing to run.
    """
    if program[:1] == ["--"] and len(program) > 1:
        return tuple(program[1:]), _stem(program[1])
    if program[:1] == ["-m"] and len(program) > 1:
        return (sys.executable, *program), program[1].rpartition(".")[2] or "run"
    if program and program[0] not in ("--", "-m"):
        return (sys.executable, *program), _stem(program[0])
    raise UsageError("run: nothing to run", hint="gpuledger run train.py   or   gpuledger run -- COMMAND")


def _stem(program: str) -> str:
    """Return a name for a run of ``program``: a script, a directory, a command, or ``-`` for standard input."""
    return "stdin" if program == "-" else Path(os.path.abspath(program)).stem or "run"


_PASSES_HELP = """What to record, of memory,energy,time; energy:50,time:4 says how many steps.
  [default: all, where they fit]"""


@click.command(
    "run",
    cls=RunCommand,
    epilog="""\b
Examples:
  gpuledger run train.py --epochs 1
  gpuledger run --steps 10:12 --out late -- torchrun --nproc-per-node 2 train.py""",
)
@click.option("--steps", metavar="FIRST:LAST", help="Steps to record, both included.  [default: 1:3]")
@click.option("--passes", metavar="LIST", help=_PASSES_HELP)
@click.option("--until-end", is_flag=True, default=None, help="Read the cards' watts to the end.")
@click.option("--out", metavar="NAME", help="Name of the run.  [default: the program's, numbered]")
@click.option("--force", is_flag=True, help="Replace a run of that name.")
@click.option("--stacks/--no-stacks", default=None, help="Keep Python stacks in the last recorded step.  [default: on]")
@click.option("--devices", type=click.Choice(["auto", "cuda", "cpu"]), help="What to record.  [default: auto]")
@click.option("--live", is_flag=True, help="Say every ten seconds how it goes; `gpuledger live RUN` can ask for more.")
@click.option("-q", "--quiet", is_flag=True, default=None, help="Say nothing.")
@click.pass_context
def run_command(ctx: click.Context, /, out: str | None, force: bool, live: bool, **flags: Any) -> None:
    """Run a program and record where its bytes, milliseconds and joules go.

    The program is not changed and notices nothing: its output, signals and exit status are its own. Without --steps
    memory is recorded from the process's begin to the end of its third step; undisturbed steps follow, for the step
    time and the joules of a card, and two steps for the times of layers. A step is one step of the first optimizer, or
    one call of the outermost module when nothing is trained.
    """
    from gpuledger.collect.settings import parse_passes, parse_steps
    from gpuledger.config import resolve

    command, stem = command_of(ctx.meta["gpuledger.program"])
    settings = resolve(flags, os.environ, Path.cwd())
    parse_steps(settings["steps"].value)
    parse_passes(settings["passes"].value)
    try:
        order = _begin(command, settings, out=out, force=force, stem=stem)
        if order is not None and live:
            order.environment["GPULEDGER_LISTEN"] = "1"
        status = _run(command, order, settings, speak=not settings["quiet"].value)
    except GpuLedgerError:
        raise
    except Exception as error:
        _say(f"gpuledger: error: the launcher broke: {type(error).__name__}: {error}")
        sys.exit(_LAUNCHER_BROKE)
    from gpuledger.collect.launch import end_like

    end_like(status)


def _begin(
    command: tuple[str, ...], settings: Mapping[str, Setting], *, out: str | None, force: bool, stem: str
) -> Order | None:
    """Return the order after making the run's directory; None where it cannot be written, which is said.

    Raises:
        UsageError: ``out`` exists.
    """
    from gpuledger.collect.launch import Order, begin_run
    from gpuledger.model.run import choose_directory

    environment = {
        "GPULEDGER_STEPS": settings["steps"].value,
        "GPULEDGER_STACKS": "1" if settings["stacks"].value else "0",
        "GPULEDGER_DEVICES": settings["devices"].value,
    }
    if settings["passes"].origin != "default":
        environment["GPULEDGER_PASSES"] = settings["passes"].value
    kept = {name: (setting.value, setting.origin) for name, setting in settings.items()}
    while True:
        directory = choose_directory(out, force=force, stem=stem)
        try:
            order = Order(command, directory, environment, kept)
            begin_run(order)
        except OSError as error:
            if isinstance(error, FileExistsError) and directory.is_dir():
                continue  # another recording took the name in between: choose anew, or be refused
            _say(f"gpuledger: error: {directory}: {error.strerror or error}; the program runs unrecorded")
            return None
        return order


def _run(command: tuple[str, ...], order: Order | None, settings: Mapping[str, Setting], *, speak: bool) -> int:
    """Return the program's status after it has ended and its run is closed."""
    from gpuledger.collect.launch import child_environment, run_child
    from gpuledger.collect.nvml import open_nvml

    devices = settings["devices"].value
    nvml = None if order is None or devices == "cpu" else open_nvml()
    if order is not None and speak:
        _say(f"gpuledger: recording to {order.run_directory}, {_what(devices, nvml)}")
    sampler = None if order is None or nvml is None else _sampler(nvml, order.run_directory)
    environment = os.environ if order is None else child_environment(order)
    pids: list[int] = []
    meter = None if order is None or nvml is None else _meter(order.run_directory, settings, pids)

    def started(pid: int) -> None:
        pids.append(pid)
        for reader in (sampler, meter):
            if reader is not None:
                reader.start()

    try:
        with ExitStack() as readers:
            for reader in (sampler, meter):
                if reader is not None:
                    readers.enter_context(reader)
            if order is not None and "GPULEDGER_LISTEN" in order.environment:
                readers.enter_context(_live_lines(order.run_directory))
            status = run_child(command, environment, started)
    except OSError as error:
        return _refuse(order, f"{command[0]}: {error.strerror or error}", error)
    if order is not None:
        _close(order.run_directory, status, _failures(sampler, meter), speak=speak)
    return status


@contextmanager
def _live_lines(run_directory: Path) -> Iterator[None]:
    """Have a process of its own say on stderr how the run goes."""
    import subprocess

    command = [sys.executable, "-m", "gpuledger", "live", str(run_directory)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), stderr=subprocess.DEVNULL
    ) as view:
        try:
            yield
        finally:
            view.terminate()


def _meter(run_directory: Path, settings: Mapping[str, Setting], pids: list[int]) -> EnergyMeter | None:
    """Return what reads the energy counters; None where no energy pass is wanted, or no card can be read."""
    from gpuledger.collect.energy_meter import open_meter
    from gpuledger.collect.settings import parse_passes

    if "energy" not in parse_passes(settings["passes"].value):
        return None
    return open_meter(run_directory, until_end=settings["until_end"].value, pid=lambda: pids[0] if pids else None)


def _failures(sampler: CardSampler | None, meter: EnergyMeter | None) -> list[str]:
    notes = [] if meter is None else meter.failures
    return [*notes, sampler.failure] if sampler is not None and sampler.failure else notes


def _sampler(nvml: Nvml, run_directory: Path) -> CardSampler:
    from gpuledger.collect.sampler import CardSampler
    from gpuledger.model.run import SAMPLE_JOURNALS

    return CardSampler(nvml, run_directory / SAMPLE_JOURNALS)


def _refuse(order: Order | None, message: str, error: OSError) -> int:
    """Return a shell's status for a command that does not start; its run, still empty, is removed."""
    import shutil

    if order is not None:
        shutil.rmtree(order.run_directory, ignore_errors=True)
    _say(f"gpuledger: error: {message}")
    return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def _close(run_directory: Path, status: int, notes: list[str], *, speak: bool) -> None:
    """Close and post the run and tell its short form; the program has ended, so nothing may fail any more."""
    from gpuledger.collect.launch import end_run

    try:
        end_run(run_directory, status, notes)
        _settle(run_directory, speak=speak)
    except KeyboardInterrupt:
        _say(f"gpuledger: interrupted: {run_directory} is finished by the next command that reads it")
    except Exception as error:
        words = error.message if isinstance(error, GpuLedgerError) else f"{type(error).__name__}: {error}"
        _say(f"gpuledger: error: {run_directory}: {words}")


def _what(devices: str, nvml: Nvml | None) -> str:
    """Return in words what will be recorded on this machine."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = nvml.device_count() if nvml is not None else 0
    if visible is not None:
        count = min(count, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))
    if devices == "cuda" or count:
        cards = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0"
        return f"CUDA allocator history on {cards}"
    why = "as asked" if devices == "cpu" else "no GPU found"
    return f"CPU tensors by the dispatch-mode recorder ({why})"


def _settle(run_directory: Path, *, speak: bool) -> None:
    """Post what was recorded, and tell the short form of it."""
    from gpuledger.model.run import rank_directories, read_json

    if not rank_directories(run_directory):
        for note in read_json(run_directory / "manifest.json")["notes"] if speak else ():
            _say(f"gpuledger: nothing was recorded: {note}")
        return
    from gpuledger.api import settle

    run = settle(run_directory)
    if speak:
        from gpuledger.report.text import print_run_summary

        print_run_summary(run, sys.stderr)


def _say(line: str) -> None:
    """Write a line to stderr; where that is closed or broken, nobody listens and the program goes on."""
    with suppress(OSError, ValueError):
        click.echo(line, err=True)
