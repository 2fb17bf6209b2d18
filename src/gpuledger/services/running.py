"""Record an unmodified program: the implementation of ``gpuledger run``.

Imports only what the program needs until the program has begun.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.errors import GpuLedgerError, words_about
from gpuledger.model.run_directory import SUFFIX

if TYPE_CHECKING:
    from gpuledger.cards.card import Card
    from gpuledger.collect.launch.launch import LaunchOrder
    from gpuledger.collect.sampling.energy_meter import EnergyMeter
    from gpuledger.collect.sampling.sampler import CardSampler
    from gpuledger.config import Setting
    from gpuledger.model.run import Run
    from gpuledger.model.run_writer import RunWriter
    from gpuledger.services.program_end import ProgramEnd

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_LOOK_S = 0.1
"""Interval of looks for a first recorded process."""


@dataclass(frozen=True)
class Listeners:
    """Callbacks: ``say`` for errors, ``note`` for other messages, ``show`` for the finished run.

    ``finished`` gets the directory of each run that was closed.
    """

    say: Callable[[str], None]
    note: Callable[[str], None] | None = None
    show: Callable[[Run], None] | None = None
    finished: Callable[[Path], None] | None = None


def record_program(
    command: tuple[str, ...],
    settings: Mapping[str, Setting],
    listeners: Listeners,
    *,
    out: str | None = None,
    stem: str = "run",
    force: bool = False,
    live: bool = False,
) -> int:
    """Return a program's exit status, negative for the signal that ended it, after recording it into a run.

    Once the program has begun, no error of gpuledger is raised. It is reported, and stored as a note in the run.

    Args:
        command: The program and its arguments.
        settings: What to record, from :func:`gpuledger.config.resolve`.
        listeners: Callbacks for messages.
        out: Name of the run; by default ``stem.ledger``, numbered.
        stem: Default name of the run.
        force: Replace a run of that name, once the program has begun.
        live: Print the progress to stderr every ten seconds, and accept requests for a memory recording.

    Raises:
        UsageError: ``out`` exists; the program was not started.
    """
    begun = _begin(command, settings, listeners.say, out=out, force=force, stem=stem)
    if begun is None:
        return _run_unrecorded(command, listeners.say)
    return _run(*begun, settings, listeners, live=live)


def record_repeats(
    repeat: int, record: Callable[[str], int], listeners: Listeners, *, out: str | None, stem: str, force: bool
) -> int:
    """Return the exit status of the first run that fails, else 0, after recording a program ``repeat`` times.

    The runs are ``out-1`` to ``out-N``. All are made even if one fails, but not after an interrupt.

    Args:
        repeat: Number of runs.
        record: Records the program into a run of the given name, and returns its exit status.
        listeners: Callbacks for messages.
        out: Name that the runs share; by default ``stem``, numbered.
        stem: Default name.
        force: Replace runs of these names.

    Raises:
        UsageError: one of the runs exists; the program was not started.
    """
    from gpuledger.services.variants import INTERRUPTED_STATUSES, keep_repeat

    name, places = _places_of_repeats(repeat, out, force=force, stem=stem)
    series_ns = time.time_ns()
    failed = 0
    for number, place in enumerate(places, 1):
        if listeners.note is not None:
            listeners.note(f"gpuledger: {number} of {repeat}: {place.name.removesuffix(SUFFIX)}")
        status = record(str(place))
        failed = failed or status
        try:
            keep_repeat(place, name, series_ns)
        except (GpuLedgerError, OSError) as error:
            listeners.say(f"gpuledger: error: {words_about(place, error)}")
        if status in INTERRUPTED_STATUSES:
            break
    return failed


def _places_of_repeats(repeat: int, out: str | None, *, force: bool, stem: str) -> tuple[str, list[Path]]:
    """Return the name that repeated runs share, and the directory of each.

    Raises:
        UsageError: one of them exists and ``force`` is False.
    """
    from gpuledger.model.run_directory import choose_directory

    name, number = (out or stem).removesuffix(SUFFIX), 1
    while out is None and any(Path(f"{name}-{one}{SUFFIX}").exists() for one in range(1, repeat + 1)):
        number += 1
        name = f"{stem}-{number}"
    names = [f"{name}-{one}" for one in range(1, repeat + 1)]
    return Path(name).name, [choose_directory(one, force=force, stem=one) for one in names]


def _begin(
    command: tuple[str, ...],
    settings: Mapping[str, Setting],
    say: Callable[[str], None],
    *,
    out: str | None,
    force: bool,
    stem: str,
) -> tuple[LaunchOrder, RunWriter] | None:
    """Return the settings and the new run; None if the run cannot be written, which is reported.

    Raises:
        UsageError: ``out`` exists.
    """
    from gpuledger.collect.launch.launch import LaunchOrder
    from gpuledger.model.run_writer import RunWriter

    environment = {
        "GPULEDGER_STEPS": settings["steps"].value,
        "GPULEDGER_STACKS": "1" if settings["stacks"].value else "0",
        "GPULEDGER_DEVICES": settings["devices"].value,
        "GPULEDGER_FLIGHT_RECORDER": "1" if settings["flight_recorder"].value else "0",
    }
    if settings["step_on"].origin != "default":
        environment["GPULEDGER_STEP_ON"] = settings["step_on"].value
    if settings["passes"].origin != "default":
        environment["GPULEDGER_PASSES"] = settings["passes"].value
    kept = {name: (setting.value, setting.origin) for name, setting in settings.items()}
    try:
        run = RunWriter.choose(out, force=force, stem=stem, command=command, settings=kept)
    except OSError as error:
        say(f"gpuledger: error: {error.filename}: {error.strerror or error}; the program runs without being recorded")
        return None
    return LaunchOrder(command, environment), run


def _run_unrecorded(command: tuple[str, ...], say: Callable[[str], None]) -> int:
    """Return the program's exit status after running it without recording."""
    from gpuledger.collect.launch.launch import run_child

    try:
        return run_child(command, os.environ)
    except OSError as error:
        return _refuse(command, error, say)


def _run(
    order: LaunchOrder, run: RunWriter, settings: Mapping[str, Setting], listeners: Listeners, *, live: bool
) -> int:
    """Return the program's exit status after it has ended and its run is closed."""
    from gpuledger.collect.launch.child import Lifetime
    from gpuledger.collect.launch.ends import ProcessEnd, RankEnds
    from gpuledger.collect.launch.launch import child_environment, run_child
    from gpuledger.services.program_end import ProgramEnd, killed_notes, kills_between, read_kills

    cards = _find_cards(run, settings["devices"].value, listeners)
    if live:
        order.environment["GPULEDGER_LISTEN"] = "1"
    pids: list[int] = []
    notes: list[str] = []
    kills = read_kills()
    sampler = _sampler(cards, run) if cards else None
    meter = _meter(run, settings, pids) if cards else None
    ends = RankEnds(run.path, run.run_id)
    lifetime = Lifetime()
    try:
        with ExitStack() as beside:
            starts: list[Callable[[], object]] = [ends.start]
            if sampler is not None:
                starts.append(beside.enter_context(sampler).start)
            if meter is not None:
                starts.append(beside.enter_context(meter).start)
            if live:
                starts.append(lambda: beside.callback(_view_lines(run.path)))
            arguments, options = (run.path, listeners), {"on_gpu": bool(cards)}
            ahead = threading.Thread(target=_load_once_recorded, args=arguments, kwargs=options, daemon=True)
            starts.append(ahead.start)

            def started(pid: int) -> None:
                pids.append(pid)
                notes.extend(_start_beside(run, starts))

            status = run_child(order.command, child_environment(order, run), started, lifetime)
    except OSError as error:
        run.discard()
        return _refuse(order.command, error, listeners.say)
    if run.directory == run.path:
        ended = {**ends.stop(), **{pid: ProcessEnd(lifetime.ended_ns, status) for pid in pids}}
        end = ProgramEnd(status, kills_between(kills, read_kills()), ended, lifetime.stopped_ns or None)
        notes += killed_notes(status, end.kills, run.path)
        settle = partial(_settle, listeners=listeners, ranks=settings["ranks"].value, end=end)
        _close(run, status, [*notes, *_failures(sampler, meter)], listeners, settle)
    else:
        run.discard()
        listeners.say(
            f"gpuledger: error: {run.path}: could not be replaced, so the program was not recorded: {notes[0]}"
        )
    return status


def _find_cards(run: RunWriter, devices: str, listeners: Listeners) -> list[Card]:
    """Return the GPUs to read, after a message about what will be recorded."""
    from gpuledger.cards.opening import find_cards

    cards = [] if devices == "cpu" else find_cards()
    if listeners.note is not None:
        listeners.note(f"gpuledger: recording to {run.path}, {_what(devices, len(cards))}")
    return cards


def _load_once_recorded(run_directory: Path, listeners: Listeners, *, on_gpu: bool) -> None:
    """Wait until a process is recorded, then :func:`_load_ahead`: of a program without PyTorch, nothing is shown."""
    from gpuledger.model.run_directory import rank_directories

    with suppress(OSError):  # the run is removed or replaced
        while not rank_directories(run_directory):
            time.sleep(_LOOK_S)
        _load_ahead(listeners, on_gpu=on_gpu)


def _load_ahead(listeners: Listeners, *, on_gpu: bool) -> None:
    """Import what builds and shows the run, while the program runs, so that its user does not wait for it at the end.

    Raises nothing: the same import fails again later, and is reported there.
    """
    with suppress(Exception):
        import numpy.ma  # noqa: F401
        import pyarrow.compute
        import pyarrow.parquet  # noqa: F401

        import gpuledger.analyze.posting.card_samples
        import gpuledger.analyze.posting.energy_posting
        import gpuledger.analyze.posting.posting
        import gpuledger.analyze.ranks.summaries
        import gpuledger.collect.sampling.calibrate
        import gpuledger.files.npz
        import gpuledger.model.parquet_parts
        import gpuledger.services.runs

        if on_gpu:
            import gpuledger.ops.predict.power
            import gpuledger.ops.predict.watts
        if listeners.show is not None:
            import gpuledger.analyze.overview.findings
            import gpuledger.report.text.run_summary  # noqa: F401


def _start_beside(run: RunWriter, starts: Sequence[Callable[[], object]]) -> list[str]:
    """Move the run to its final path, and start what reads beside the program. Return what could not start.

    Raises nothing, because an exception would end the program with this process.
    """
    notes = []
    for begin in (run.take_place, *starts):
        try:
            begin()
        except Exception as error:
            notes.append(f"A part of the recording could not start: {type(error).__name__}: {error}")
    return notes


def _view_lines(run_directory: Path) -> Callable[[], None]:
    """Start a process that prints the run's progress to stderr. Return the function that stops it."""
    import subprocess

    from gpuledger.collect.launch.launch import PASSED_ON
    from gpuledger.processes.parent_death import dying_with

    die_with_parent = dying_with(os.getpid(), signal.SIGTERM)

    def begin() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ends the view, even if it is ignored here
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)  # the launcher blocks these signals while it waits

    command = [sys.executable, "-m", "gpuledger", "live", str(run_directory)]
    view = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), stderr=subprocess.DEVNULL, preexec_fn=begin
    )

    def end() -> None:
        view.terminate()
        view.wait()

    return end


def _meter(run: RunWriter, settings: Mapping[str, Setting], pids: list[int]) -> EnergyMeter | None:
    """Return the reader of the energy counters; None if energy is not measured, or no GPU can be read."""
    from gpuledger.collect.launch.settings import parse_passes
    from gpuledger.collect.sampling.energy_meter import open_meter

    if "energy" not in parse_passes(settings["passes"].value):
        return None
    pid = lambda: pids[0] if pids else None  # noqa: E731
    return open_meter(run.path, until_end=settings["until_end"].value, pid=pid, check=run.check)


def _failures(sampler: CardSampler | None, meter: EnergyMeter | None) -> list[str]:
    notes = [] if meter is None else meter.failures
    return [*notes, sampler.failure] if sampler is not None and sampler.failure else notes


def _sampler(cards: list[Card], run: RunWriter) -> CardSampler:
    from gpuledger.collect.sampling.sampler import CardSampler
    from gpuledger.model.run_directory import SAMPLE_JOURNALS

    return CardSampler(cards, run.path / SAMPLE_JOURNALS, check=run.check)


def _refuse(command: tuple[str, ...], error: OSError, say: Callable[[str], None]) -> int:
    """Return a shell's exit status for a command that cannot be started."""
    say(f"gpuledger: error: {command[0]}: {error.strerror or error}")
    if command[0].endswith(".py") and Path(command[0]).is_file():
        say(f"  hint: gpuledger run {shlex.join(command)}")
    return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def _close(run: RunWriter, status: int, notes: list[str], listeners: Listeners, settle: Callable[[Path], None]) -> None:
    """Close the run, build its tables and show it. The program has ended, so errors must not propagate."""
    try:
        run.close(notes, status=status, post=settle)
    except KeyboardInterrupt:
        listeners.say(f"gpuledger: interrupted: the next command that reads {run.path} will finish it")
    except Exception as error:
        listeners.say(f"gpuledger: error: {words_about(run.path, error)}")
    else:
        if listeners.finished is not None:
            listeners.finished(run.path)


def _what(devices: str, count: int) -> str:
    """Return a description of what will be recorded on this machine."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        count = min(count, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))
    if devices != "cpu" and count:
        cards = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0"
        return f"CUDA memory of {cards}"
    if devices == "cuda":
        return "CPU tensors, unless PyTorch finds a GPU (--devices cuda, but no GPU found)"
    why = "--devices cpu" if devices == "cpu" else "no GPU found"
    return f"CPU tensors ({why})"


def _settle(run_directory: Path, *, listeners: Listeners, ranks: str, end: ProgramEnd) -> None:
    """Build the tables of a recording, store how its ranks ended, keep the events of the chosen ones, and show it."""
    from gpuledger.model.run_directory import rank_directories
    from gpuledger.model.run_manifest import read_run_manifest

    if not rank_directories(run_directory):
        if listeners.note is not None:
            for note in read_run_manifest(run_directory).notes:
                listeners.note(f"gpuledger: nothing was recorded. {note}")
        return
    from gpuledger.services.keeping_events import keep_events
    from gpuledger.services.rank_ends import keep_ends
    from gpuledger.services.rank_numbers import number_ranks
    from gpuledger.services.runs import settle

    run = keep_events(number_ranks(keep_ends(settle(run_directory), end)), ranks)
    if listeners.show is not None:
        listeners.show(run)
