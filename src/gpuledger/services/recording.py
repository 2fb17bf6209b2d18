"""Record from Python: ``gpuledger.record`` as a context manager, a decorator, or in a notebook."""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from gpuledger.errors import GpuLedgerError, UsageError
from gpuledger.model.run import Run
from gpuledger.model.run_directory import RANK_PREFIX
from gpuledger.model.run_writer import RunWriter
from gpuledger.services.runs import load, post_missing
from gpuledger.services.shared_recording import one_rank_at_a_time, open_own_run
from gpuledger.units import counted, format_bytes

if TYPE_CHECKING:
    from gpuledger.collect.sampling.energy_meter import EnergyMeter
    from gpuledger.collect.session.session import Session

MEMORY_ALONE = "memory"
AUTO = "auto"
Function = TypeVar("Function", bound=Callable[..., object])


class Recording:
    """One recording started from Python; see :func:`record`."""

    def __init__(
        self,
        name: str,
        *,
        out: str | Path | None,
        steps: tuple[int, int] | None,
        stacks: bool,
        force: bool,
        devices: str,
        passes: str = MEMORY_ALONE,
        step_on: str = AUTO,
    ) -> None:
        self.name = name
        self._passes = passes
        self._step_on = step_on
        self._meter: EnergyMeter | None = None
        self._out = None if out is None else str(out)
        self._steps = steps
        self._stacks = stacks
        self._force = force
        self._devices = devices
        self.flies = False
        """Whether counters and out-of-memory errors are recorded until the end, also after the recorded steps."""
        self._session: Session | None = None
        self._writer: RunWriter | None = None
        self._is_creator = True
        self._rank = 0
        self.recorded_by: Path | None = None
        """The run of ``gpuledger run`` if it records this process.

        This recording then refers to that run and has no data.
        """
        self.path: Path | None = None
        """Directory of the run, once it has begun. Under ``gpuledger run``, the directory of that run."""

    def __enter__(self) -> Recording:
        """Start recording. Does nothing under ``gpuledger run``, which records the whole process.

        Raises:
            UsageError: the output exists, steps are not two numbers in order, or the program has another recording in
                progress in this process.
        """
        from gpuledger.collect.launch.settings import (
            DEFAULT_FIRST_STEP,
            DEFAULT_LAST_STEP,
            RecordSettings,
            check_steps,
            parse_passes,
            parse_step_on,
        )
        from gpuledger.collect.sampling.energy_meter import begin_meter
        from gpuledger.collect.session import active
        from gpuledger.collect.session.outer_run import find_outer_run

        passes, step_on = parse_passes(self._passes), parse_step_on(self._step_on)
        everything = (1, sys.maxsize) if len(passes) == 1 else (DEFAULT_FIRST_STEP, DEFAULT_LAST_STEP)
        first, last = everything if self._steps is None else check_steps(self._steps)
        self.path = self.recorded_by = find_outer_run()
        if self.recorded_by is not None:
            return self
        active.refuse_second()
        place = open_own_run(self._out, force=self._force, stem=self.name)
        self._writer, self._is_creator = place.writer, place.is_creator
        self._rank = int(place.rank_directory.name.removeprefix(RANK_PREFIX))
        self.path = self._writer.path
        settings = RecordSettings(
            self.path, first, last, self._stacks, self._devices, passes, step_on=step_on, flight_recorder=self.flies
        )
        if "energy" in passes and self._devices != "cpu" and self._is_creator:
            self._meter = begin_meter(self._writer)
        self._session = active.start_recording(settings, place.rank_directory)
        return self

    def __repr__(self) -> str:
        return f"<Recording {self.name!r}: {self._state()}>"

    def _state(self) -> str:
        """Return the state as text. Raises nothing if the run is damaged or gone."""
        if self.path is None:
            return "not begun"
        if self.recorded_by is not None:
            return f"recorded by gpuledger run into {self.recorded_by.name}, which holds it"
        if self._session is not None:
            return f"recording into {self.path.name}, {counted(self._session.steps.seen, 'step')}"
        try:
            steps, peak_bytes = self.run().rank(self._rank).manifest.steps_seen, self.peak_allocated_bytes
        except GpuLedgerError as error:
            return f"ended, {error.message}"
        words = [counted(steps or 0, "step"), *([] if peak_bytes is None else [f"peak {format_bytes(peak_bytes)}"])]
        return ", ".join(["ended", self.path.name, *words])

    def step(self) -> None:
        """Mark the end of a step. Without marks, steps are those of the optimizer, or calls of the outermost module."""
        if self.recorded_by is not None:
            return  # the outer recording counts its own steps: this one can begin late and end early
        if self._session is None:
            raise UsageError("recording.step(): the recording is not active", hint="Call step() inside the with block")
        self._session.mark_step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop recording and build the run's tables. An exception of the block propagates unchanged."""
        from gpuledger.collect.session import active

        if self.recorded_by is not None:
            return
        assert self._session is not None
        assert self._writer is not None
        session, self._session = self._session, None
        if not self._writer.is_of_this_process:
            return  # a forked child leaves the block, too, but the recording belongs to its parent
        active.stop_recording(session, "exception" if error else "end of record")
        if self._meter is not None:
            self._meter.__exit__(None, None, None)
        if self._is_creator:
            with self._writer.adding_to(error), one_rank_at_a_time(self._writer.path):
                self._writer.close(post=post_missing)

    def run(self) -> Run:
        """Return the finished run. Under ``gpuledger run``, that run as far as it is written.

        Raises:
            UsageError: it is not finished.
        """
        if self.recorded_by is not None:
            return load(self.recorded_by)
        if self.path is None or self._session is not None:
            raise UsageError("recording.run(): the recording is still active", hint="Call run() after the with block")
        with one_rank_at_a_time(self.path):
            return load(self.path)

    def _repr_html_(self) -> str | None:
        """Return the finished run as HTML for notebooks; None until it is finished."""
        pending = self.path is None or self._session is not None or self.recorded_by is not None
        return None if pending else self.run()._repr_html_()

    @property
    def metrics(self) -> dict[str, float]:
        """Return name -> value of the finished recording's metrics, such as ``step_energy_j``.

        Metrics that were not measured are left out. Under ``gpuledger run``, they are that run's so far.

        Raises:
            UsageError: it is not finished.
        """
        from gpuledger.analyze.compare.metrics import headline

        if self.recorded_by is None:
            return headline(self.run().rank(self._rank))
        mine = [rank for rank in self.run().ranks if rank.manifest.pid == os.getpid()]
        return headline(mine[0]) if mine else {}

    @property
    def peak_allocated_bytes(self) -> int | None:
        """Return the peak of allocated bytes of the whole program; None if nothing was recorded."""
        found = self.metrics.get("peak_allocated_bytes")
        return None if found is None else round(found)

    @property
    def step_time_ns(self) -> float | None:
        """Return the median step time in ns, of unprofiled steps if there are any; None without steps."""
        return self.metrics.get("step_time_ns")

    @property
    def step_energy_j(self) -> float | None:
        """Return the energy of one step in J; None without an energy measurement."""
        return self.metrics.get("step_energy_j")

    @property
    def sample_energy_j(self) -> float | None:
        """Return the energy of one sample in J; None if the energy of a step or the batch size is unknown."""
        return self.metrics.get("sample_energy_j")

    @property
    def gpu_busy_frac(self) -> float | None:
        """Return the fraction of a step in which the GPU is busy; None without a timing measurement on a GPU."""
        return self.metrics.get("gpu_busy_frac")

    def __call__(self, function: Function) -> Function:
        """Return ``function`` wrapped so that each call is recorded into a numbered run of its own."""

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with copy.copy(self):  # this one is never entered itself
                return function(*args, **kwargs)

        return recorded  # type: ignore[return-value]


def record(
    name: str = "recording",
    *,
    out: str | Path | None = None,
    steps: tuple[int, int] | None = None,
    stacks: bool = True,
    force: bool = False,
    devices: str = "auto",
    passes: str = MEMORY_ALONE,
    step_on: str = AUTO,
) -> Recording:
    """Return a recording of a ``with`` block, or of a decorated function.

    Args:
        name: Name of the run. Without ``out``, its directory is the first free one of ``NAME.ledger``,
            ``NAME-2.ledger``, …
        out: Directory of the run. Ranks of one job, as torchrun starts them, record into it together.
        steps: First and last step to record, from 1 and both included; None records the whole block.
        stacks: Record the Python stack of each allocation.
        force: Overwrite ``out``.
        devices: ``auto``, ``cuda`` or ``cpu``.
        passes: What to measure, in this order, such as ``memory,energy,time``; with a number of steps:
            ``memory,time:4``. With more than memory, ``steps`` is (1, 3) by default.
        step_on: What ends a step: ``optimizer``, ``module`` (a call of the outermost module), ``call:NAME`` (a call of
            the modules with that path or class), ``mark`` (a call of :func:`gpuledger.step`), or ``auto``: the first
            optimizer, or else the outermost module, or else marks if there are any.

    Raises:
        UsageError: when recording begins: ``out`` exists, ``passes`` is not such a list, ``step_on`` is none of these,
            or another recording is in progress in this process.

    Source: CUDA tensors by the caching allocator's history, exact; CPU tensors by a dispatch mode.

    Example:
        >>> import gpuledger
        >>> with gpuledger.record("step") as recording:  # doctest: +SKIP
        ...     loss_of(model(batch)).backward()
        >>> recording.peak_allocated_bytes  # doctest: +SKIP
    """
    return Recording(
        name, out=out, steps=steps, stacks=stacks, force=force, devices=devices, passes=passes, step_on=step_on
    )


def flight_recorder(
    name: str = "flight", *, out: str | Path | None = None, force: bool = False, devices: str = "auto"
) -> Recording:
    """Return a recording of a ``with`` block that stays on after the first three steps, until the block ends.

    Records the memory of steps 1 to 3, then counters at the end of every step, and each out-of-memory error. For
    programs that are not started with ``gpuledger run``, which does the same.

    Args:
        name: Name of the run, as in :func:`record`.
        out: Directory of the run.
        force: Overwrite ``out``.
        devices: ``auto``, ``cuda`` or ``cpu``.

    Raises:
        UsageError: when recording begins: ``out`` exists, or another recording is in progress in this process.

    Source: the caching allocator's counters, and its snapshot at an error.

    Example:
        >>> import gpuledger
        >>> with gpuledger.flight_recorder("train"):  # doctest: +SKIP
        ...     train(model)
    """
    recording = Recording(name, out=out, steps=(1, 3), stacks=True, force=force, devices=devices)
    recording.flies = True
    return recording
