"""Watch GPUs while a command, a process or a block of Python runs, and write the samples as a run."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gpuledger.analyze.posting.posting import post_ranks
from gpuledger.analyze.samples.watched import Watched, watched
from gpuledger.collect.launch.child import Lifetime
from gpuledger.collect.launch.launch import run_child
from gpuledger.collect.sampling.watcher import Watcher
from gpuledger.errors import UsageError, words_of
from gpuledger.model.run import Run, read_run
from gpuledger.model.run_directory import choose_directory
from gpuledger.model.run_writer import RunWriter, new_manifest
from gpuledger.units import parse_duration_ns

SHORTEST_NS = 200_000
DEFAULT_INTERVAL = "5ms"


@dataclass(frozen=True)
class WatchSettings:
    """What to watch: numbers of the GPUs (None for all) and the time between two samples."""

    gpus: tuple[int, ...] | None = None
    interval_ns: int = 5_000_000


def parse_interval_ns(text: str) -> int:
    """Return the time between two samples in ns.

    Raises:
        UsageError: not a duration, or shorter than the minimum.
    """
    interval_ns = parse_duration_ns(text)
    if interval_ns < SHORTEST_NS:
        raise UsageError(f"--interval {text}: too short", hint="Use 200us or more, for example 5ms")
    return interval_ns


def parse_gpus(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers in a text such as ``0,1``; None for None.

    Raises:
        UsageError: an entry is not a number or occurs twice.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise UsageError(f"--gpu {text}: expected GPU indices, each once", hint="For example 0 or 0,1")
    return tuple(int(word) for word in words)


def watch_command(
    command: Sequence[str],
    directory: Path,
    settings: WatchSettings,
    say: Callable[[str], None],
    *,
    replace: bool = False,
) -> int:
    """Return the command's exit status, negative for a signal, after watching it and writing the run ``directory``.

    Once the command has started, no error of gpuledger is raised. Errors are printed.

    Args:
        command: The command.
        directory: Directory of the run.
        settings: What to watch.
        say: Called with each line for the user.
        replace: Whether an existing run is replaced, once the command has started.

    Raises:
        NoDeviceError: no GPU can be read; the command was not started.
        UsageError: the run cannot be written; the command was not started.
        FileNotFoundError: there is no such command; no run is left.
        OSError: the command cannot be executed; no run is left.
    """
    run, watcher = _begin(directory, command, settings, replace=replace)
    say(sampling_line(settings, directory))
    window, lifetime = -1, Lifetime()

    def started(pid: int) -> None:
        nonlocal window
        window = watcher.begin(at_ns=lifetime.started_ns)
        watcher.follow(pid)
        try:
            run.take_place()
        except Exception as error:  # raising it would end the command with this process
            say(f"gpuledger: error: {directory}: could not be overwritten: {words_of(error)}")

    try:
        status = run_child(command, os.environ, started, lifetime)
    except OSError:
        watcher.stop()
        run.discard()
        raise
    with _unhurried():
        try:
            _close(run, watcher, window, lifetime, status)
        except Exception as error:
            say(f"gpuledger: error: {directory}: sampling stopped early: {words_of(error)}")
    return status


@contextmanager
def _unhurried() -> Iterator[None]:
    """Block signals while the run of an ended command is written, and unblock them afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def sampling_line(settings: WatchSettings, directory: Path) -> str:
    """Return the line for the user at the beginning of a watched run."""
    return f"gpuledger: sampling every {settings.interval_ns / 1e6:g} ms into {directory}"


def watch_until(
    directory: Path,
    settings: WatchSettings,
    say: Callable[[str], None],
    ended: Callable[[], bool],
    pid: int | None = None,
    *,
    replace: bool = False,
) -> None:
    """Watch the GPUs into ``directory`` until ``ended``; ``pid`` is the process with its own memory line.

    ``say`` is called with a line for the user once sampling begins. With ``replace``, an existing run is replaced then.

    Raises:
        NoDeviceError: no GPU can be read.
        OSError: the run cannot be written.
    """
    run, watcher = _begin(directory, (), settings, pid, replace=replace)
    run.take_place()
    say(f"{sampling_line(settings, directory)}; stop with Ctrl-C")
    lifetime = Lifetime(time.time_ns())
    window = watcher.begin(at_ns=lifetime.started_ns)
    if pid is not None:
        watcher.follow(pid)
    try:
        while not ended():
            time.sleep(0.05)
    finally:
        _close(run, watcher, window, lifetime, 0)


def _begin(
    directory: Path, command: Sequence[str], settings: WatchSettings, pid: int | None = None, *, replace: bool
) -> tuple[RunWriter, Watcher]:
    """Return a new run and the sampler that writes into it. If the sampler does not start, no run is left.

    Raises:
        NoDeviceError: no GPU can be read.
        UsageError: the run cannot be written.
        GpuLedgerError: the sampler does not start.
    """
    kept = {"interval_ns": (settings.interval_ns, "flag"), "gpus": (settings.gpus, "flag")}
    try:
        run = RunWriter.open(directory, new_manifest(directory.name, command, kept), replace=replace)
    except OSError as error:
        raise UsageError(
            f"{directory}: cannot be created: {error.strerror}", hint="Choose another directory with --out"
        ) from error
    try:
        return run, Watcher(run.directory, settings.gpus, settings.interval_ns, pid)
    except OSError as error:
        run.discard()
        raise UsageError(
            f"{directory}: cannot be written: {error.strerror}", hint="Choose another directory with --out"
        ) from error
    except BaseException:
        run.discard()
        raise


def _close(run: RunWriter, watcher: Watcher, window: int, lifetime: Lifetime, status: int) -> None:
    """Stop the sampler and close the run: write times, exit status and tables."""
    ended_ns = lifetime.ended_ns or time.time_ns()
    watcher.end(window, at_ns=ended_ns)
    watcher.stop()
    run.close(watcher.notes, status=status, times_ns=(lifetime.started_ns, ended_ns), post=post_ranks)


class Watch:
    """Samples of the GPUs during a ``with`` block; see :func:`watch`.

    Values are those of the first GPU, available after the block has ended.
    """

    def __init__(self, name: str, settings: WatchSettings, *, out: str | Path | None, force: bool) -> None:
        self.name = name
        self._settings = settings
        self._out = None if out is None else str(out)
        self._force = force
        self._watcher: Watcher | None = None
        self._run: RunWriter | None = None
        self._window, self._lifetime = -1, Lifetime()
        self.path: Path | None = None
        """Directory of the run, once the block has started."""

    def __repr__(self) -> str:
        if self.path is None:
            return f"<Watch {self.name!r}: not begun>"
        return f"<Watch {self.name!r}: {'ended,' if self._watcher is None else 'watching into'} {self.path.name}>"

    def __enter__(self) -> Watch:
        """Start sampling.

        Raises:
            NoDeviceError: no GPU can be read.
            UsageError: the output exists or cannot be written, or the block has started already.
        """
        if self._watcher is not None:
            raise UsageError(
                "watch: this watch is already active", hint="Call gpuledger.watch() again for a second one"
            )
        self.path = choose_directory(self._out, force=self._force, stem=self.name).absolute()
        self._run, self._watcher = _begin(self.path, sys.argv, self._settings, os.getpid(), replace=self._force)
        self._run.take_place()
        self._lifetime = Lifetime(time.time_ns())
        self._window = self._watcher.begin(at_ns=self._lifetime.started_ns)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop sampling and write the run. An exception of the block propagates unchanged."""
        assert self._watcher is not None
        assert self._run is not None
        if not self._run.is_of_this_process:
            return  # a forked child leaves the block, too, but the samples belong to its parent
        self._lifetime.ended_ns = time.time_ns()
        watcher, self._watcher = self._watcher, None
        with self._run.adding_to(error):
            _close(self._run, watcher, self._window, self._lifetime, 0 if error is None else 1)

    @contextmanager
    def window(self, name: str) -> Iterator[None]:
        """Measure a part of the block separately, under a name. Windows can be nested.

        Raises:
            UsageError: the block has not started or has ended, or ``name`` is empty.
        """
        if self._watcher is None:
            raise UsageError("watch: window() was called outside the with block")
        if not name:
            raise UsageError("watch: window() needs a name", hint='For example watch.window("forward")')
        watcher = self._watcher
        number = watcher.begin(name)
        try:
            yield
        finally:
            watcher.end(number)

    def run(self) -> Run:
        """Return the finished run.

        Raises:
            UsageError: the block has not ended.
        """
        if self.path is None or self._watcher is not None:
            raise UsageError("watch: the watch is still active", hint="Read the run after the with block")
        return read_run(self.path)

    def _repr_html_(self) -> str | None:
        """Return the finished run as HTML for notebooks; None until it is finished."""
        return None if self.path is None or self._watcher is not None else self.run()._repr_html_()

    @property
    def figures(self) -> Watched:
        """Return all values of the first GPU."""
        found = watched(self.run())
        if not found:
            raise UsageError("watch: no samples were taken", hint="Watch a longer part of the program")
        return found[0]

    @property
    def energy_j(self) -> float | None:
        """Return the energy of the block in J; None if the GPU does not report it."""
        return self.figures.energy_j

    @property
    def energy_uncertainty_j(self) -> float | None:
        """Return the uncertainty of ``energy_j`` in J; None if the GPU does not report energy."""
        return self.figures.energy_uncertainty_j

    @property
    def peak_bytes(self) -> int | None:
        """Return the largest increase of used bytes over the first sample."""
        return self.figures.peak_bytes

    @property
    def windows(self) -> dict[str, float | None]:
        """Return name -> energy in J of the named windows on the first GPU. Windows of one name are summed.

        None if a window is below the counter's resolution, or the GPU does not report energy.
        """
        first = self.figures.device_idx
        found: dict[str, float | None] = {}
        for row in self.run().rank().table("windows").to_pylist():
            if row["name"] and row["device_idx"] == first:
                before_j, energy_j = found.get(row["name"], 0.0), row["energy_j"]
                found[row["name"]] = None if before_j is None or energy_j is None else before_j + energy_j
        return found


def watch(
    name: str = "watch",
    *,
    gpus: Sequence[int] | None = None,
    interval: str = DEFAULT_INTERVAL,
    out: str | Path | None = None,
    force: bool = False,
) -> Watch:
    """Return a context manager that samples memory, power and energy of the GPUs while its block runs.

    Args:
        name: Name of the run.
        gpus: Numbers of the GPUs; None for all.
        interval: Time between two samples, such as ``5ms``.
        out: Directory of the run; by default ``name.ledger``, numbered.
        force: Replace an existing run.

    Raises:
        UsageError: ``interval`` is too short or not a duration.

    Source: NVML or nvidia-smi, for the whole GPU. ``Watch.energy_uncertainty_j`` is the uncertainty of the energy.

    Example:
        >>> import gpuledger
        >>> with gpuledger.watch() as watched:  # doctest: +SKIP
        ...     train()
        >>> watched.energy_j  # doctest: +SKIP
    """
    settings = WatchSettings(None if gpus is None else tuple(gpus), parse_interval_ns(interval))
    return Watch(name, settings, out=out, force=force)
