"""A campaign: capture models, measure operators missing from the database, and compare sums with whole models."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.errors import EmptyRunError, GpuLedgerError
from gpuledger.files.writing import write_whole

if TYPE_CHECKING:
    from gpuledger.ops.database.method import Method
    from gpuledger.ops.database.operator_database import OperatorDatabase
    from gpuledger.ops.database.statistics import Spread
    from gpuledger.ops.database.whole_models import WholeModel
    from gpuledger.ops.measure.campaign import Campaigned
    from gpuledger.ops.measure.fill import Filled
    from gpuledger.ops.measure.measure import OnProgress, Progress
    from gpuledger.ops.measure.measured_device import Device
    from gpuledger.ops.predict.choose import EnvironmentRecords
    from gpuledger.ops.totals.compare import Pair, Recorded, Whole
    from gpuledger.ops.workloads.workload import Workload
    from gpuledger.ops.workloads.workload_spec import WorkloadSpec
    from gpuledger.services.watching import Watch


@dataclass(frozen=True)
class RayWorkers:
    """Ray's workers: the address (``local`` starts Ray), the device, and the number of workers on a CPU."""

    address: str
    device: str
    workers: int
    allow_busy: bool


@dataclass(frozen=True)
class Campaign:
    """Where and how a campaign measures, and its database.

    After ``time_limit_ns`` no operator is started (one device only). ``ray`` measures on all of Ray's workers.
    """

    place: Device
    database: OperatorDatabase
    method: Method
    energy_share_frac: float
    time_limit_ns: int | None = None
    ray: RayWorkers | None = None


def measure_campaign(
    campaign: Campaign,
    workloads: Sequence[Workload],
    folder: Path,
    *,
    trusted: bool = False,
    on_progress: OnProgress | None = None,
    measured: Callable[[Filled | Campaigned], None] = lambda _: None,
) -> list[Pair]:
    """Return each workload's sum of operators and its whole model, after measuring missing operators.

    On a GPU, the campaign itself is written as a run into ``folder``, with a window for each measurement.

    Args:
        campaign: Where and how to measure.
        workloads: The captured workloads.
        folder: Folder of the campaign's own run.
        trusted: Whether a workload's factory may be imported and run.
        on_progress: Called with the progress.
        measured: Called with the result of the operators, before whole models are measured.
    """
    from gpuledger.ops.measure.fill import fill
    from gpuledger.ops.measure.names import name_kernels

    one = campaign
    with _watched(one.place, folder, everywhere=one.ray is not None) as windows:
        if one.ray is not None:
            measured(_measure_with_ray(one, one.ray, workloads, windows, on_progress))
        else:
            with windows.one_after_the_other(on_progress) as next_window:
                filled = fill(
                    workloads, one.database, one.place, one.method, energy_share_frac=one.energy_share_frac,
                    budget_ns=one.time_limit_ns, on_progress=next_window,
                )  # fmt: skip
            measured(filled)
        pairs = _compare(one, workloads, windows, trusted=trusted)
    name_kernels(one.database, one.place)
    return pairs


class _Windows:
    """Windows of the campaign's own run. There are none on a CPU, which is not sampled."""

    def __init__(self, run: Watch | None) -> None:
        self._run = run

    def window(self, name: str) -> AbstractContextManager[None]:
        """Return a context for the measurement of ``name``."""
        return nullcontext() if self._run is None else self._run.window(name)

    @contextmanager
    def one_after_the_other(self, on_progress: OnProgress | None) -> Iterator[OnProgress]:
        """Yield a progress callback that opens a window for each operator and closes the one before."""
        with ExitStack() as open_:

            def next_window(progress: Progress) -> None:
                open_.close()
                open_.enter_context(self.window(f"{progress.done:05d} {progress.operator}"))
                if on_progress is not None:
                    on_progress(progress)

            yield next_window


@contextmanager
def _watched(place: Device, folder: Path, *, everywhere: bool) -> Iterator[_Windows]:
    """Sample the GPU during the campaign; with ``everywhere``, all GPUs of this machine."""
    if place.sensors is None:
        yield _Windows(None)
        return
    from gpuledger.services.watching import watch

    gpus = None if everywhere else [place.sensors.index]
    with watch("campaign", gpus=gpus, out=folder / f"campaign-{time.time_ns()}.ledger") as run:
        yield _Windows(run)


def _measure_with_ray(
    campaign: Campaign,
    ray: RayWorkers,
    workloads: Sequence[Workload],
    windows: _Windows,
    on_progress: OnProgress | None,
) -> Campaigned:
    """Measure on all of Ray's workers. Host overhead between operators is measured in this process first."""
    from gpuledger.ops.measure.campaign import measure_workloads
    from gpuledger.ops.measure.chains import fill_around
    from gpuledger.ops.measure.ray_crew import RayCrew
    from gpuledger.processes.ray_cluster import connected

    fill_around(campaign.database, campaign.place)
    numbers = itertools.count()
    with connected(ray.address) as module:
        return measure_workloads(
            RayCrew(module, ray.device, campaign.method, workers=ray.workers, force=ray.allow_busy),
            campaign.database,
            workloads,
            campaign.method,
            energy_share_frac=campaign.energy_share_frac,
            watch=lambda worker, task: windows.window(f"{next(numbers):05d} worker {worker}: {task.key.name}"),
            on_progress=on_progress,
            clock_ns=time.time_ns,
        )


def _compare(campaign: Campaign, workloads: Sequence[Workload], windows: _Windows, *, trusted: bool) -> list[Pair]:
    from gpuledger.ops.measure.captured_models import step_of
    from gpuledger.ops.predict.choose import records_of_environment

    wholes = []
    for workload in workloads:
        with windows.window(workload.name):
            step = step_of(workload, campaign.place, trusted=trusted)
            wholes.append(_measured_whole(workload, step, campaign.place, campaign.database, campaign.method))
    shelf = records_of_environment(campaign.database, campaign.place.environment)
    return [_pair(workload, shelf, whole) for workload, whole in zip(workloads, wholes, strict=True)]


def compare_workloads(
    workloads: Sequence[Workload],
    place: Device,
    database_url: str,
    *,
    method: Method,
    energy_share_frac: float,
    trusted: bool = False,
    progress: Callable[[], AbstractContextManager[OnProgress | None]] = nullcontext,
) -> list[Pair]:
    """Return each workload's sum of operators and its whole model, after measuring missing operators.

    All models are created before the database is opened and the first operator is measured.

    Args:
        workloads: The captured workloads of models that have a name.
        place: The device, from :func:`gpuledger.ops.measure.measured_device.find_device`.
        database_url: A file or a URL, as for :func:`gpuledger.ops.database.operator_database.open_database`.
        method: How to measure.
        energy_share_frac: Energy is measured for the longest operators that make up this share of a workload's time.
        trusted: Whether a workload's factory may be imported and run.
        progress: A context around the measurement of operators; its value is called with the progress.

    Raises:
        InputError: a workload is of a program, or names code to run and is not trusted; or the database cannot be
            opened.
        UsageError: a model does not exist, or its library is not installed.
    """
    from gpuledger.ops.database.operator_database import open_database
    from gpuledger.ops.measure.captured_models import step_of
    from gpuledger.ops.measure.fill import fill
    from gpuledger.ops.predict.choose import records_of_environment

    steps = [step_of(workload, place, trusted=trusted) for workload in workloads]
    with open_database(database_url) as database:
        with progress() as on_progress:
            fill(workloads, database, place, method, energy_share_frac=energy_share_frac, on_progress=on_progress)
        wholes = [
            _measured_whole(workload, step, place, database, method)
            for workload, step in zip(workloads, steps, strict=True)
        ]
        shelf = records_of_environment(database, place.environment)
    return [_pair(workload, shelf, whole) for workload, whole in zip(workloads, wholes, strict=True)]


def _measured_whole(
    workload: Workload, step: Callable[[], object], place: Device, database: OperatorDatabase, method: Method
) -> Whole:
    """Return a whole model. Its host time goes into the database, for the sum."""
    from gpuledger.ops.measure.host_step import put_host_step
    from gpuledger.ops.measure.whole import measure_whole

    whole = measure_whole(step, place, method)
    if whole.host_ns is not None:
        put_host_step(database, place, workload, whole.host_ns)
    return whole


def _pair(workload: Workload, shelf: EnvironmentRecords, whole: Whole) -> Pair:
    from gpuledger.ops.predict.choose import cache_folder, sum_measured
    from gpuledger.ops.totals.compare import Pair

    return Pair(workload.name, workload.mode, sum_measured(workload, shelf, cache_folder()), whole)


def compare_recorded(
    workloads: Sequence[Workload],
    shelf: EnvironmentRecords,
    *,
    left_out: Callable[[WorkloadSpec, GpuLedgerError], None] = lambda _spec, _error: None,
) -> list[Pair]:
    """Return each workload's sum of operators and its whole model from the database, without measuring.

    Args:
        workloads: The captured workloads. If empty, the whole models of the database are captured by name.
        shelf: The records, from :func:`gpuledger.ops.predict.choose.open_environment_records`.
        left_out: Called with each model that cannot be captured, and the error.

    Raises:
        EmptyRunError: the database has no whole model on the GPU, or none of a workload.
    """
    from gpuledger.ops.database.whole_models import whole_models
    from gpuledger.ops.totals.compare import whole_of_record

    held = whole_models(shelf.records, shelf.keys)
    if not held:
        raise EmptyRunError(
            f"{shelf.environment.title}: the database holds no whole model",
            hint="Import them with: gpuledger ops import printed-rows",
        )
    asked = [(one, whole_model_named(one)) for one in workloads] if workloads else _captured(held, shelf, left_out)
    pairs = []
    for workload, model in asked:
        whole = whole_of_record(held[model]) if model in held else None
        if whole is None:
            hint = f"Choose one of {', '.join(sorted({one.model for one in held}))}"
            raise EmptyRunError(f"{workload.name}: the database holds no such whole model", hint=hint)
        pairs.append(_pair(workload, shelf, whole))
    return pairs


def whole_model_named(workload: Workload) -> WholeModel | None:
    """Return the whole model of a workload; None for a program, or a model with several inputs."""
    from gpuledger.ops.database.whole_models import WholeModel

    model, inputs = workload.settings.get("model"), workload.settings.get("inputs") or []
    if not isinstance(model, str) or len(inputs) != 1 or not all(part.isdecimal() for part in inputs[0].split("x")):
        return None
    return WholeModel(model, tuple(map(int, inputs[0].split("x"))), workload.mode)


def _captured(
    models: Iterable[WholeModel],
    shelf: EnvironmentRecords,
    left_out: Callable[[WorkloadSpec, GpuLedgerError], None],
) -> list[tuple[Workload, WholeModel | None]]:
    """Return the workloads of models by name, captured on a simulated GPU."""
    from gpuledger.ops.predict.choose import captured_on
    from gpuledger.ops.workloads.captures import asked_for, capture_model
    from gpuledger.ops.workloads.workload_spec import WorkloadSpec

    found: list[tuple[Workload, WholeModel | None]] = []
    for model in models:
        spec = WorkloadSpec(model.model, model.mode, "x".join(map(str, model.size)))
        try:
            found.append((capture_model(asked_for(spec), captured_on(shelf.environment)), model))
        except GpuLedgerError as error:
            left_out(spec, error)
    return found


def write_pairs(pairs: Sequence[Pair], environment: dict[str, Any], place: Path) -> dict[str, Any]:
    """Return the pairs and their errors as a JSON value, after writing it to ``place``."""
    from gpuledger.ops.totals.compare import pairs_document

    document = pairs_document(pairs, environment)
    write_whole(place, f"{json.dumps(document, indent=1)}\n".encode("ascii"))
    return document


def _half_of(quantity: Spread | Recorded) -> float:
    """Return half the width of the interval; 0 without an interval, so that no error bar is drawn."""
    return 0.0 if quantity.low is None or quantity.high is None else (quantity.high - quantity.low) / 2


def draw_pairs(pairs: Sequence[Pair], card: str, suffix: str) -> bytes:
    """Return the pairs as a bar chart in the format of ``suffix``: ``.png``, ``.svg`` or ``.pdf``.

    Raises:
        UsageError: matplotlib is not installed.
    """
    from gpuledger.report.plots.operator_plot import BarPair
    from gpuledger.report.plots.operator_plot import draw_pairs as draw
    from gpuledger.report.plots.plot_style import own_settings, picture_bytes

    times = [
        BarPair(
            pair.name, pair.sum.step_ns / 1e6, (pair.sum.busy_half_ns or 0.0) / 1e6, pair.whole.time_ns.median / 1e6,
            _half_of(pair.whole.time_ns) / 1e6,
        )
        for pair in pairs
    ]  # fmt: skip
    energies = [
        BarPair(
            pair.name,
            pair.sum.energy_j,
            pair.sum.energy_half_j or 0.0,
            None if pair.whole.energy_j is None else pair.whole.energy_j.median,
            0.0 if pair.whole.energy_j is None else _half_of(pair.whole.energy_j),
        )
        for pair in pairs
    ]
    with own_settings():
        return picture_bytes(draw(times, energies, f"Operators' sum and the whole model on {card}"), suffix)
