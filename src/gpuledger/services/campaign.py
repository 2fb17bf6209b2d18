"""A campaign: capture models, measure the operators that the database lacks, and compare sums with whole models."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.errors import GpuLedgerError, InputError
from gpuledger.files.writing import write_whole

if TYPE_CHECKING:
    from gpuledger.ops.database.method import Method
    from gpuledger.ops.database.operator_database import OperatorDatabase
    from gpuledger.ops.measure.campaign import Campaigned
    from gpuledger.ops.measure.fill import Filled
    from gpuledger.ops.measure.measure import Progress, Tell
    from gpuledger.ops.measure.place import Place
    from gpuledger.ops.totals.compare import Pair
    from gpuledger.ops.workloads.workload import Workload
    from gpuledger.ops.workloads.workload_spec import WorkloadSpec
    from gpuledger.services.watching import Watch


@dataclass(frozen=True)
class RayWorkers:
    """Ray's workers: where Ray is (``local`` starts it), the device, and how many there are on a CPU."""

    address: str
    device: str
    workers: int
    allow_busy: bool


@dataclass(frozen=True)
class Campaign:
    """Where a campaign measures, how, and into which database.

    ``time_limit_ns`` is when no further operator is started, on one device; ``ray`` measures on all of Ray's workers.
    """

    place: Place
    database: OperatorDatabase
    method: Method
    energy_share_frac: float
    time_limit_ns: int | None = None
    ray: RayWorkers | None = None


def capture_all(
    wanted: Sequence[WorkloadSpec], place: Place, folder: Path, failed: Callable[[WorkloadSpec, GpuLedgerError], None]
) -> list[Workload]:
    """Return the workloads, written into ``folder``; one that cannot be captured is left out and told to ``failed``.

    Raises:
        InputError: none could be captured.
    """
    from gpuledger.ops.workloads.captures import asked_for, capture_model
    from gpuledger.ops.workloads.workload import SUFFIX

    workloads: list[Workload] = []
    first: GpuLedgerError | None = None
    folder.mkdir(parents=True, exist_ok=True)
    for one in wanted:
        try:
            workload = capture_model(asked_for(one), None if place.on_card else "cpu")
        except GpuLedgerError as error:
            first = first or error
            failed(one, error)
            continue
        write_whole(folder / (workload.name + SUFFIX), workload.encoded())
        workloads.append(workload)
    if not workloads:
        raise InputError("campaign: no workload could be captured", hint=None if first is None else first.message)
    return workloads


def measure_campaign(
    campaign: Campaign,
    workloads: Sequence[Workload],
    folder: Path,
    *,
    trusted: bool = False,
    tell: Tell | None = None,
    measured: Callable[[Filled | Campaigned], None] = lambda _: None,
) -> list[Pair]:
    """Return each workload's sum of operators beside the whole model, after measuring what the database lacks.

    On a GPU a run of the campaign itself is written into ``folder``, with a window for each measurement.

    Args:
        campaign: Where and how to measure.
        workloads: What was captured.
        folder: Where the campaign's own run goes.
        trusted: Whether a workload's factory may be imported and run.
        tell: Takes the progress.
        measured: Takes what was measured of operators, before whole models are.
    """
    from gpuledger.ops.measure.fill import fill
    from gpuledger.ops.measure.names import name_kernels

    one = campaign
    with _watched(one.place, folder, everywhere=one.ray is not None) as windows:
        if one.ray is not None:
            measured(_measure_with_ray(one, one.ray, workloads, windows, tell))
        else:
            with windows.one_after_the_other(tell) as told:
                filled = fill(
                    workloads, one.database, one.place, one.method, energy_share_frac=one.energy_share_frac,
                    budget_ns=one.time_limit_ns, tell=told,
                )  # fmt: skip
            measured(filled)
        pairs = _compare(one, workloads, windows, trusted=trusted)
    name_kernels(one.database, one.place)
    return pairs


class _Windows:
    """Windows of the campaign's own run; none on a CPU, where there is nothing to sample."""

    def __init__(self, run: Watch | None) -> None:
        self._run = run

    def window(self, name: str) -> AbstractContextManager[None]:
        """Return what is open while ``name`` is measured."""
        return nullcontext() if self._run is None else self._run.window(name)

    @contextmanager
    def one_after_the_other(self, tell: Tell | None) -> Iterator[Tell]:
        """Yield what is told before each operator: its window is open until the next one's, or the end."""
        with ExitStack() as open_:

            def told(progress: Progress) -> None:
                open_.close()
                open_.enter_context(self.window(f"{progress.done:05d} {progress.operator}"))
                if tell is not None:
                    tell(progress)

            yield told


@contextmanager
def _watched(place: Place, folder: Path, *, everywhere: bool) -> Iterator[_Windows]:
    """Sample the GPU meanwhile, or ``everywhere`` all GPUs of this machine."""
    if place.sensors is None:
        yield _Windows(None)
        return
    from gpuledger.services.watching import watch

    gpus = None if everywhere else [place.sensors.index]
    with watch("campaign", gpus=gpus, out=folder / f"campaign-{time.time_ns()}.ledger") as run:
        yield _Windows(run)


def _measure_with_ray(
    campaign: Campaign, ray: RayWorkers, workloads: Sequence[Workload], windows: _Windows, tell: Tell | None
) -> Campaigned:
    """Measure on all of Ray's workers; what the host needs around operators is measured here, before they begin."""
    from gpuledger.ops.measure.campaign import measure_workloads
    from gpuledger.ops.measure.chains import fill_around
    from gpuledger.ops.measure.ray_crew import RayCrew, connected

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
            tell=tell,
            clock_ns=time.time_ns,
        )


def _compare(campaign: Campaign, workloads: Sequence[Workload], windows: _Windows, *, trusted: bool) -> list[Pair]:
    from gpuledger.ops.measure.captured_models import step_of
    from gpuledger.ops.measure.whole import measure_whole
    from gpuledger.ops.predict.choose import cache_folder, records_of_environment, sum_measured
    from gpuledger.ops.totals.compare import Pair

    shelf = records_of_environment(campaign.database, campaign.place.environment)
    pairs = []
    for workload in workloads:
        with windows.window(workload.name):
            step = step_of(workload, campaign.place, trusted=trusted)
            whole = measure_whole(step, campaign.place, campaign.method)
        pairs.append(Pair(workload.name, workload.mode, sum_measured(workload, shelf, cache_folder()), whole))
    return pairs


def write_pairs(pairs: Sequence[Pair], environment: dict[str, Any], place: Path) -> dict[str, Any]:
    """Return the pairs and their errors as a JSON value, after writing it to ``place``."""
    from gpuledger.ops.totals.compare import pairs_document

    document = pairs_document(pairs, environment)
    write_whole(place, f"{json.dumps(document, indent=1)}\n".encode("ascii"))
    return document


def draw_pairs(pairs: Sequence[Pair], card: str, suffix: str) -> bytes:
    """Return the pairs as bars, in the form of ``suffix``: ``.png``, ``.svg`` or ``.pdf``.

    Raises:
        UsageError: matplotlib is not installed.
    """
    from gpuledger.report.plots.operator_plot import BarPair
    from gpuledger.report.plots.operator_plot import draw_pairs as draw
    from gpuledger.report.plots.plot_style import own_settings, picture_bytes

    times = [
        BarPair(
            pair.name, pair.sum.step_ns / 1e6, pair.sum.busy_half_ns / 1e6, pair.whole.time_ns.median / 1e6,
            (pair.whole.time_ns.high - pair.whole.time_ns.low) / 2e6,
        )
        for pair in pairs
    ]  # fmt: skip
    energies = [
        BarPair(
            pair.name,
            pair.sum.energy_j,
            pair.sum.energy_half_j or 0.0,
            None if pair.whole.energy_j is None else pair.whole.energy_j.median,
            0.0 if pair.whole.energy_j is None else (pair.whole.energy_j.high - pair.whole.energy_j.low) / 2,
        )
        for pair in pairs
    ]
    with own_settings():
        return picture_bytes(draw(times, energies, f"Operators' sum and the whole model on {card}"), suffix)
