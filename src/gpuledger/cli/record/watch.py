"""``gpuledger watch``: what the GPUs do while any command runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import force_option, out_option, takes
from gpuledger.errors import NoDeviceError, UsageError

if TYPE_CHECKING:
    from gpuledger.services.variants import CardSample, Variant, VariantsResult
    from gpuledger.services.watching import WatchSettings

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_IDLE_NS = 100_000_000
"""How often a GPU is looked at until it is idle."""


@dataclass(frozen=True)
class WatchFlags:
    """What the line of ``watch`` says."""

    interval: str
    gpu_text: str | None
    out: str | None
    force: bool
    pid: int | None
    variants_text: str | None
    vary_texts: tuple[str, ...]
    repeat: int
    quiet: bool
    command: tuple[str, ...]


@click.command(
    "watch",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  gpuledger watch -- ./mem_prof vgg19.pb CUDNN
  gpuledger watch --variants FFT,CUDNN -- ./mem_prof vgg19.pb {variant}""",
)
@click.option(
    "--interval", default="5ms", show_default=True, metavar="TIME", help="Time between two samples, such as 5ms or 1s."
)
@click.option("--gpu", "gpu_text", metavar="LIST", help="Indices of the GPUs to watch, such as 0,1.  [default: all]")
@out_option(", or of the folder for several runs.  [default: name of the command, or variants, numbered]")
@force_option()
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    metavar="PID",
    help="Watch a process that is already running, by its process ID.",
)
@click.option(
    "--variants",
    "variants_text",
    metavar="NAME=VALUE,…",
    help="Run COMMAND once for each value, with {variant} replaced by it.",
)
@click.option(
    "--vary",
    "vary_texts",
    multiple=True,
    metavar="NAME=A,B,…",
    help="Also run COMMAND for each of these values of {NAME}; repeatable.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of times to run each variant.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no messages of gpuledger.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARGS]…]")
@takes(WatchFlags)
def watch_command(flags: WatchFlags) -> int | None:
    """Record GPU memory and power while any command runs.

    The result is a run with samples of memory, power, energy, utilization and clocks over time. COMMAND runs unchanged:
    its output, signals and exit status stay the same. Without COMMAND and --pid, the GPUs are watched until you press
    Ctrl-C.

    Exits with the status of COMMAND.
    """
    from gpuledger.collect.launch.ranks import name_of_process
    from gpuledger.services.watching import WatchSettings, parse_gpus, parse_interval_ns

    settings = WatchSettings(parse_gpus(flags.gpu_text), parse_interval_ns(flags.interval))
    say = _silent if flags.quiet else _say
    force, pid, command = flags.force, flags.pid, flags.command
    out = None if flags.out is None else name_of_process(flags.out)
    if flags.variants_text is not None or flags.vary_texts or flags.repeat > 1:
        if pid is not None or not command:
            raise UsageError(
                "watch: --variants, --vary and --repeat need a command", hint="gpuledger watch --variants … -- COMMAND"
            )
        from gpuledger.services.variants import make_variants, parse_variants, parse_vary

        # What cannot be run is refused before a GPU is asked for.
        values, varied = parse_variants(flags.variants_text), parse_vary(flags.vary_texts)
        variants = make_variants(command, values, varied, flags.repeat)
        return _watch_variants(variants, out, force, settings, say)
    if pid is not None and command:
        raise UsageError("watch: --pid and a command cannot be combined", hint="Leave one of them out")
    if pid is None and command:
        _watch_command(command, out, force, settings, say)
    _watch_until(out, force, settings, pid, say)
    return None


def _watch_command(
    command: tuple[str, ...], out: str | None, force: bool, settings: WatchSettings, say: Callable[[str], None]
) -> None:
    """Watch one command and end as it ended."""
    from gpuledger.collect.launch.launch import end_like
    from gpuledger.model.run_directory import choose_directory

    directory = choose_directory(out, force=force, stem=_stem(command[0]))
    try:
        status = _watched(command, directory, settings, say, replace=force)
    except OSError as error:
        say(f"gpuledger: error: {command[0]}: {error.strerror or error}")
        sys.exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)
    end_like(status)


def _watched(
    command: tuple[str, ...], directory: Path, settings: WatchSettings, say: Callable[[str], None], *, replace: bool
) -> int:
    """Watch a command and print its run. Return the command's exit status."""
    from gpuledger.services.watching import watch_command as watch

    status = watch(command, directory, settings, say, replace=replace)
    _print_result(directory, say)
    return status


def _watch_until(
    out: str | None, force: bool, settings: WatchSettings, pid: int | None, say: Callable[[str], None]
) -> None:
    """Watch a process, or the GPUs, until it ends or somebody interrupts."""
    from gpuledger.collect.sampling.process_tree import is_alive
    from gpuledger.model.run_directory import choose_directory
    from gpuledger.services.watching import watch_until

    if pid is not None and not is_alive(pid):
        raise UsageError(f"--pid {pid}: no such process")
    interrupted: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: interrupted.append(received))
    directory = choose_directory(out, force=force, stem="watch" if pid is None else f"pid-{pid}")
    ended = lambda: bool(interrupted) or (pid is not None and not is_alive(pid))  # noqa: E731
    watch_until(directory, settings, say, ended, pid, replace=force)
    _print_result(directory, say)


def _watch_variants(
    variants: Sequence[Variant], out: str | None, force: bool, settings: WatchSettings, say: Callable[[str], None]
) -> int:
    """Run the variants and print a comparison. Return the exit status."""
    from gpuledger.cards.opening import open_cards
    from gpuledger.services.variants import CardSample, Tools, choose_folder, run_variants

    try:
        there = open_cards(tool_interval_ns=_IDLE_NS)
        cards = there.choose(settings.gpus)
    except NoDeviceError as error:
        raise NoDeviceError(f"watch: {error.message}", hint=error.hint) from error

    def read_cards() -> list[CardSample]:
        found = [(card.index, card.read_memory(), card.read_sensors().power_average_w) for card in cards]
        return [CardSample(index, None if one is None else one.used_bytes, power_w) for index, one, power_w in found]

    def watch(words: tuple[str, ...], directory: Path) -> int:
        try:
            return _watched(words, directory, settings, say, replace=force)
        except OSError as error:
            say(f"gpuledger: error: {words[0]}: {error.strerror or error}")
            return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE

    try:
        result = run_variants(variants, choose_folder(out, variants, force=force), Tools(watch, read_cards, say))
    finally:
        there.close()
    tell_variants(result, say)
    return result.exit_code


def tell_variants(result: VariantsResult, say: Callable[[str], None]) -> None:
    """Print the failed variants, and a comparison of the others."""
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.compare_table import comparison_lines
    from gpuledger.services.variants import compare_variants

    for name, status in result.failed.items():
        say(f"gpuledger: {name}: {'exit status' if status > 0 else 'ended by signal'} {abs(status)}; its run is kept")
    found = compare_variants(result)
    if found.comparison is not None:
        for line in comparison_lines(found.comparison, Terminal.of(sys.stderr)):
            say(line)
    for problem in found.problems:
        say(f"gpuledger: {problem}")
    for picture in found.pictures:
        say(str(picture))


def _print_result(directory: Path, say: Callable[[str], None]) -> None:
    """Print a summary of a finished run. Errors here do not affect the run."""
    from gpuledger.analyze.samples.watched import watched
    from gpuledger.errors import words_of
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.watched_text import watched_lines
    from gpuledger.services.runs import load

    try:
        run = load(directory)
        for line in watched_lines(run, watched(run), Terminal.of(sys.stderr)):
            say(line)
    except Exception as error:
        say(f"gpuledger: error: {directory}: {words_of(error)}")


def _stem(program: str) -> str:
    return Path(os.path.abspath(program)).stem or "run"


def _say(line: str) -> None:
    with suppress(OSError, ValueError):
        click.echo(line, err=True)


def _silent(_: str) -> None:
    """Say nothing."""
