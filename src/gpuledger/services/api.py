"""The public Python API: the only place that joins collecting, posting and reading."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from gpuledger.analyze.posting.card_samples import post_card_samples
from gpuledger.analyze.posting.energy_posting import post_energy
from gpuledger.analyze.posting.posting import post_ranks
from gpuledger.collect.sampling.calibrate import (
    Calibration,
    CardKey,
    cache_path,
    libraries_for,
    load_profile,
    lookup_or_measure,
)
from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.files.writing import refuse_links
from gpuledger.formats.readers import find_format, read_files, single_paths
from gpuledger.model.imported import write_imported
from gpuledger.model.manifest import read_json, read_rank_manifest, with_notes, write_rank_manifest
from gpuledger.model.run import Rank, Run, read_run
from gpuledger.model.run_directory import SUFFIX, choose_directory
from gpuledger.model.run_writer import RunWriter
from gpuledger.units import counted, format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.compare.diff import Diff
    from gpuledger.collect.sampling.energy_meter import EnergyMeter
    from gpuledger.collect.session.session import Session

MEMORY_ALONE = "memory"
Function = TypeVar("Function", bound=Callable[..., object])


def load(path: str | Path) -> Run:
    """Return the run in ``path``; a rank whose journal is not posted (its process was killed, or runs) is posted first.

    Raises:
        InputError: not a run, damaged, of a newer schema, or with a link, a pipe or a device in it.

    Example:
        >>> import gpuledger
        >>> gpuledger.load("train.ledger").table("blocks").num_rows  # doctest: +SKIP
    """
    place = Path(path)
    refuse_links(place)
    if (place / "manifest.json").is_file():
        read_json(place / "manifest.json")
        post_missing(place)
    return read_run(place)


def load_foreign(path: Path) -> Run:
    """Return the run that a file or folder of an older format holds, imported into a directory of this process.

    Raises:
        InputError: it is of no format that is read, or nothing in it could be read.
    """
    format_name = find_format(path)
    if format_name is None:
        return read_run(path)
    paths = single_paths(path, format_name)
    if len(paths) > 1:
        raise InputError(f"{path}: {len(paths)} {format_name} files, each a run of its own", hint=f"such as {paths[0]}")
    stem = paths[0].stem
    imported = read_files(format_name, paths, stem, {})
    return write_imported(imported, _scratch_directory() / f"{stem}{SUFFIX}")


def diff(
    before: str | Path | Run,
    after: str | Path | Run,
    by: str = "module",
    *,
    depth: int | None = None,
    at: str = "peak",
    step: int | None = None,
    rank: int | None = None,
    device_idx: int | None = None,
) -> Diff:
    """Return how ``after`` differs from ``before``: figures, and the accounts' bytes, time and joules.

    Args:
        before: A run or its path, or a file of an older format.
        after: The same, compared with ``before``.
        by: What tells accounts apart beside category and module: ``category`` and ``module`` add nothing, ``phase``,
            ``tensor`` and ``scope`` do.
        depth: Fold module paths to their first ``depth`` components.
        at: ``peak``, ``end``, or a time such as ``1.5s``, looked up in each run for itself.
        step: Take the peak or the end of this step.
        rank: Compare this rank only; None compares those that both have.
        device_idx: Compare this device only, by torch's index; None compares those that both have.

    Raises:
        EmptyRunError: a run holds nothing to compare.
        InputError: one is not a run.
        UsageError: a run has no such rank, device, instant or step.

    Source: caching allocator's history, exact; times and joules as :class:`Run` holds them.

    Example:
        >>> import gpuledger
        >>> for change in gpuledger.diff("before.ledger", "after.ledger").main.changes():  # doctest: +SKIP
        ...     print(change)
    """
    from gpuledger.analyze.compare.diff import diff_runs

    words = tuple(dict.fromkeys(("category", "module", by)))
    return diff_runs(open_run(before), open_run(after), words, depth, at, step, rank, device_idx)


def open_run(run: str | Path | Run) -> Run:
    """Return the run that ``run`` names: a directory, its suffix may be left out, or files of an older format.

    Raises:
        InputError: it is not a run, damaged, of a newer schema, or of no format that is read.
    """
    if isinstance(run, Run):
        return run
    path = Path(run)
    with_suffix = path.with_name(path.name + SUFFIX) if path.name else path
    if not path.exists() and with_suffix.exists():
        return load(with_suffix)
    if path.exists() and not (path / "manifest.json").is_file():
        return load_foreign(path)
    return load(path)


def _scratch_directory() -> Path:
    """Return a new directory that is removed when this process ends."""
    directory = Path(tempfile.mkdtemp(prefix="gpuledger-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def import_files(
    format_name: str, paths: Sequence[Path], out: Path, options: Mapping[str, Any], *, force: bool = False
) -> Run:
    """Return the run made of files in an older format, written to ``out``; ``force`` replaces a run that is there.

    Raises:
        UsageError: no such format, an option that it does not take, or ``out`` exists.
        InputError: nothing could be read; an old run is still there.
        OSError: it cannot be written.
    """
    imported = read_files(format_name, paths, out.name.removesuffix(SUFFIX), options)
    return write_imported(imported, choose_directory(str(out), force=force, stem=out.stem), replace=force)


def post_missing(run_directory: Path) -> None:
    """Post every rank that has a journal which is not in its tables, or not all of it."""
    post_ranks(run_directory, lambda rank: _add_libraries(rank, _kept_profile))
    post_card_samples(run_directory)
    for directory in post_energy(run_directory):
        _add_watts(directory)


def settle(run_directory: Path) -> Run:
    """Return a run whose program has just ended, posted, with what context and libraries take measured apart."""
    post_missing(run_directory)
    for rank in read_run(run_directory).ranks:
        if rank.manifest.libraries is None:
            _add_libraries(rank, lookup_or_measure)
    return read_run(run_directory)


def _add_libraries(rank: Rank, lookup: Callable[[CardKey, str], Calibration]) -> None:
    """Write into a rank's manifest what context and libraries take on its card."""
    trained = "backward" in rank.table("spans", ("phase",)).column("phase").to_pylist()
    libraries, notes = libraries_for(rank.manifest, trained=trained, lookup=lookup)
    if libraries is not None or notes:
        manifest = replace(with_notes(rank.manifest, *notes), libraries=libraries or rank.manifest.libraries)
        write_rank_manifest(rank.directory, manifest)


def _add_watts(rank_directory: Path) -> None:
    """Write into a rank's manifest what is known of operators' watts on its card, by which its joules are shared."""
    from gpuledger.analyze.operator_work.power_model import model_to_json
    from gpuledger.ops.predict.power import find_power_model
    from gpuledger.ops.predict.watts import find_watts

    manifest = read_rank_manifest(rank_directory)
    cards = {str(device.name) for device in manifest.devices if device.device_idx >= 0}
    if len(cards) != 1:
        return
    card = cards.pop()
    table, model = find_watts(card, os.environ), find_power_model(card)
    if table is not None:
        manifest = replace(manifest, measured_watts=table.to_json())
    if model is not None:
        manifest = replace(manifest, power_model=model_to_json(model))
    if table is not None or model is not None:
        write_rank_manifest(rank_directory, manifest)


def _kept_profile(key: CardKey, _uuid: str) -> Calibration:
    return load_profile(key, cache_path())


class Recording:
    """One recording made from Python; see :func:`record`."""

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
    ) -> None:
        self.name = name
        self._passes = passes
        self._meter: EnergyMeter | None = None
        self._out = None if out is None else str(out)
        self._steps = steps
        self._stacks = stacks
        self._force = force
        self._devices = devices
        self._session: Session | None = None
        self._writer: RunWriter | None = None
        self.recorded_by: Path | None = None
        """The run that ``gpuledger run`` records the process into: this recording stands for it and holds nothing."""
        self.path: Path | None = None
        """Directory of the run, once it has begun; below ``gpuledger run``, of that run."""

    def __enter__(self) -> Recording:
        """Begin recording; nothing begins below ``gpuledger run``, which records the whole process.

        Raises:
            UsageError: the output exists, or another recording of the program's is under way in this process.
        """
        from gpuledger.collect.launch.settings import (
            DEFAULT_FIRST_STEP,
            DEFAULT_LAST_STEP,
            RecordSettings,
            parse_passes,
        )
        from gpuledger.collect.sampling.energy_meter import begin_meter
        from gpuledger.collect.session import session as sessions
        from gpuledger.collect.session.outer_run import find_outer_run

        passes = parse_passes(self._passes)
        self.path = self.recorded_by = find_outer_run()
        if self.recorded_by is not None:
            return self
        sessions.refuse_second()
        self._writer = RunWriter.choose(self._out, force=self._force, stem=self.name, of_this_process=True)
        self.path = self._writer.path
        everything = (1, sys.maxsize) if len(passes) == 1 else (DEFAULT_FIRST_STEP, DEFAULT_LAST_STEP)
        first, last = self._steps or everything
        stacks = self._stacks and self._steps is not None
        settings = RecordSettings(self.path, first, last, stacks, self._devices, passes)
        if "energy" in passes and self._devices != "cpu":
            self._meter = begin_meter(self._writer)
        self._session = sessions.start_recording(settings, self.path / "rank-0")
        return self

    def __repr__(self) -> str:
        return f"<Recording {self.name!r}: {self._state()}>"

    def _state(self) -> str:
        """Return how far it is, in words; nothing is raised where its run is damaged or gone."""
        if self.path is None:
            return "not begun"
        if self.recorded_by is not None:
            return f"recorded by gpuledger run into {self.recorded_by.name}, which holds it"
        if self._session is not None:
            return f"recording into {self.path.name}, {counted(self._session.steps.seen, 'step')}"
        try:
            steps, peak_bytes = self.run().rank().manifest.steps_seen, self.peak_allocated_bytes
        except GpuLedgerError as error:
            return f"ended, {error.message}"
        words = [counted(steps or 0, "step"), *([] if peak_bytes is None else [f"peak {format_bytes(peak_bytes)}"])]
        return ", ".join(["ended", self.path.name, *words])

    def step(self) -> None:
        """Mark the end of a step. Without it steps are told by the optimizer, or by calls of the outermost module."""
        if self.recorded_by is not None:
            return  # its steps are told as without this recording, which may begin late and end early
        if self._session is None:
            raise UsageError("recording.step(): nothing is being recorded", hint="use it inside the with-block")
        self._session.mark_step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End recording and post it; an exception of the block goes on as it is."""
        from gpuledger.collect.session import session as sessions

        if self.recorded_by is not None:
            return
        assert self._session is not None
        assert self._writer is not None
        session, self._session = self._session, None
        if not self._writer.is_of_this_process:
            return  # a forked child leaves the block as well; the recording is its parent's
        sessions.stop_recording(session, "exception" if error else "end of record")
        if self._meter is not None:
            self._meter.__exit__(None, None, None)
        with self._writer.adding_to(error):
            self._writer.close(post=post_missing)

    def run(self) -> Run:
        """Return the finished run; where ``gpuledger run`` records the process, that run as far as it is written.

        Raises:
            UsageError: it is not finished.
        """
        if self.recorded_by is not None:
            return load(self.recorded_by)
        if self.path is None or self._session is not None:
            raise UsageError("recording.run(): the recording has not ended", hint="use it after the with-block")
        return load(self.path)

    def _repr_html_(self) -> str | None:
        """Return the finished run as a notebook shows it; None until then."""
        pending = self.path is None or self._session is not None or self.recorded_by is not None
        return None if pending else self.run()._repr_html_()

    @property
    def metrics(self) -> dict[str, float]:
        """Return the figures of the finished recording by name, such as ``step_energy_j``.

        Those it does not have are left out. Where ``gpuledger run`` records the process, they are that run's so far.

        Raises:
            UsageError: it is not finished.
        """
        from gpuledger.analyze.compare.metrics import headline

        if self.recorded_by is None:
            return headline(self.run().rank())
        mine = [rank for rank in self.run().ranks if rank.manifest.pid == os.getpid()]
        return headline(mine[0]) if mine else {}

    @property
    def peak_allocated_bytes(self) -> int | None:
        """Return the most bytes that the whole program had allocated; None where nothing was recorded."""
        found = self.metrics.get("peak_allocated_bytes")
        return None if found is None else round(found)

    @property
    def step_time_ns(self) -> float | None:
        """Return the median step in nanoseconds, undisturbed where there were such steps; None without a step."""
        return self.metrics.get("step_time_ns")

    @property
    def step_energy_j(self) -> float | None:
        """Return the joules of one step; None without an energy pass on a card whose energy can be read."""
        return self.metrics.get("step_energy_j")

    @property
    def sample_energy_j(self) -> float | None:
        """Return the joules of one sample; None where those of a step, or the batch size, are not known."""
        return self.metrics.get("sample_energy_j")

    @property
    def gpu_busy_frac(self) -> float | None:
        """Return the share of a step in which the card has work; None without a time pass on a card."""
        return self.metrics.get("gpu_busy_frac")

    def __call__(self, function: Function) -> Function:
        """Return ``function`` wrapped so that each call is recorded, into a numbered run each."""

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with Recording(
                self.name,
                out=self._out,
                steps=self._steps,
                stacks=self._stacks,
                force=self._force,
                devices=self._devices,
                passes=self._passes,
            ):
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
) -> Recording:
    """Return a recording of what happens inside a ``with`` block, or of a decorated function.

    Args:
        name: Name of the run; without ``out`` it goes to the first free ``NAME.ledger``, ``NAME-2.ledger``, …
        out: Directory of the run.
        steps: First and last step to record, from 1 and both included; None records the whole block.
        stacks: Keep Python stacks in the last recorded step (only where ``steps`` says which that is).
        force: Overwrite ``out``.
        devices: ``auto``, ``cuda`` or ``cpu``.
        passes: What to record, one after the other, such as ``memory,energy,time`` or ``memory,time:4`` with steps of
            its own; with more than memory ``steps`` is (1, 3) where it is not given.

    Raises:
        UsageError: when recording begins: ``out`` exists, ``passes`` is not such a list, or another recording is under
            way in this process.

    Source: CUDA tensors by the caching allocator's history, exact; CPU tensors at PyTorch's dispatcher.

    Example:
        >>> import gpuledger
        >>> with gpuledger.record("step") as recording:  # doctest: +SKIP
        ...     loss_of(model(batch)).backward()
        >>> recording.peak_allocated_bytes  # doctest: +SKIP
    """
    return Recording(name, out=out, steps=steps, stacks=stacks, force=force, devices=devices, passes=passes)
