"""Sums of operators: time and energy of a workload from the database, after measuring missing operators if asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.errors import InputError, UsageError
from gpuledger.model.run_directory import MANIFEST

if TYPE_CHECKING:
    from gpuledger.ops.database.method import Method
    from gpuledger.ops.database.operator_database import OperatorDatabase
    from gpuledger.ops.measure.measure import OnProgress
    from gpuledger.ops.measure.measured_device import Device
    from gpuledger.ops.predict.choose import EnvironmentRecords, FitProgress
    from gpuledger.ops.totals.coverage import Coverage
    from gpuledger.ops.totals.sum import Sum
    from gpuledger.ops.workloads.workload import Workload

BATCH = 32
WorkloadFor = Callable[[str], "Workload"]
"""Returns a workload for one GPU model: from a file, or captured now."""


@dataclass(frozen=True)
class Measuring:
    """Where and how operators missing from the database are measured."""

    database: OperatorDatabase
    place: Device
    method: Method
    energy_share_frac: float


@dataclass(frozen=True)
class Summed:
    """One workload: its sum over the requested operators, and their share of the whole workload."""

    workload: Workload
    total: Sum
    coverage: Coverage
    chosen: frozenset[str] | None


def asked_of(text: str, batch: int | None = None, *, train: bool = False, inputs: str | None = None) -> WorkloadFor:
    """Return a workload from a file, or a model by name with batch size or input shape, and mode.

    A name alone is torchvision's.

    Raises:
        InputError: the file is damaged, or there is none.
        UsageError: batch size, shape or mode is given for a workload file, which has its own; or batch size and shape.
    """
    options = {f"--batch {batch}": batch is not None, f"--input {inputs}": inputs is not None, "--train": train}
    given = [option for option, is_given in options.items() if is_given]
    if not is_workload(text):
        if batch is not None and inputs is not None:
            raise UsageError(f"{given[0]} and {given[1]}: the shape has the batch size", hint="Give only --input")
        return lambda card: capture_named(text, batch or BATCH, (card,), train=train, inputs=inputs)
    workload = open_workload(text)
    if given:
        raise UsageError(
            f"{given[0]}: does not apply to {text}, which has a fixed batch size, input shape and mode",
            hint="Give a model's name instead of a workload file",
        )
    return lambda _: workload


def open_workload(text: str) -> Workload:
    """Return the workload in the file ``text``. The suffix can be omitted.

    Raises:
        InputError: the file does not exist or is damaged, or it is a folder, such as a run.
    """
    from gpuledger.ops.workloads.workload import HINT, SUFFIX, read_workload

    named, suffixed = Path(text), Path(text + SUFFIX)
    if not named.is_file() and suffixed.exists():
        return read_workload(suffixed)
    if named.is_dir():
        raise InputError(f"{text}: {'a run' if (named / MANIFEST).exists() else 'a folder'}, not a workload", hint=HINT)
    return read_workload(named)


def is_workload(text: str) -> bool:
    """Return whether ``text`` names a file, not a model; the suffix of a workload can be omitted.

    A name with a workload suffix is a file name, even if the file is missing.
    """
    from gpuledger.ops.workloads.workload import SUFFIX

    may_be_model = ":" in text or text.partition("?")[0].isidentifier()
    return not may_be_model or Path(text).exists() or Path(text + SUFFIX).exists()


def capture_named(
    model: str, batch: int, cards: Sequence[str | None], *, train: bool, inputs: str | None = None
) -> Workload:
    """Return a model captured now, on the first of ``cards`` in the catalogue as a simulated GPU, or else on the CPU.

    ``inputs`` is the input shape with the batch size. If it is None, the model's own shape is used, with ``batch``.

    Raises:
        UsageError: no such model.
        InputError: the model cannot be created, or does not accept the inputs of its own configuration.
    """
    from gpuledger.ops.predict.choose import is_catalogued
    from gpuledger.ops.workloads.captures import asked_for, capture_model
    from gpuledger.ops.workloads.workload_spec import WorkloadSpec

    place = next((name for name in cards if name and is_catalogued(name)), "cpu")
    spec = WorkloadSpec(model, "training" if train else "inference", inputs=inputs, batch=batch)
    return capture_model(asked_for(spec), place)


def sum_workloads(
    asked: Sequence[WorkloadFor],
    shelf: EnvironmentRecords,
    types: Sequence[str] | None = None,
    *,
    fitting: FitProgress | None = None,
) -> list[Summed]:
    """Return each workload's sum from the database records of one GPU model.

    Args:
        asked: The workloads, from :func:`asked_of`.
        shelf: The records, from :func:`gpuledger.ops.predict.choose.open_environment_records`.
        types: Count only operators in layers of these types, or with these names; None counts all.
        fitting: Returns a context around a long fit of the model that predicts missing operators.
    """
    from gpuledger.ops.predict.choose import captured_on

    workloads = [one(captured_on(shelf.environment)) for one in asked]
    return _sum(workloads, shelf, [_chosen(one, types) for one in workloads], fitting)


def measure_until(
    asked: Sequence[WorkloadFor],
    measuring: Measuring,
    target_frac: float,
    types: Sequence[str] | None = None,
    *,
    progress: Callable[[], AbstractContextManager[OnProgress | None]] = nullcontext,
    fitting: FitProgress | None = None,
) -> list[Summed]:
    """Return the sums after measuring the operators that are expected to add most.

    Measures until every workload has ``target_frac`` of its time and energy attributed, or no operator is left.
    Without ``types``, all records of the database count. ``progress`` is a context around the measurement.
    """
    from gpuledger.ops.measure.fill import fill
    from gpuledger.ops.predict.choose import records_of_environment

    database, place = measuring.database, measuring.place
    workloads = [one(place.environment.card) for one in asked]
    chosen = [_chosen(one, types) or frozenset({_most_called(one)}) for one in workloads]
    while True:
        with progress() as on_progress:
            for workload, digests in zip(workloads, chosen, strict=True):
                fill(
                    [workload], database, place, measuring.method, only=digests, on_progress=on_progress,
                    energy_share_frac=measuring.energy_share_frac,
                )  # fmt: skip
        counted = [None] * len(chosen) if types is None else chosen
        found = _sum(workloads, records_of_environment(database, place.environment), counted, fitting)
        more = [
            frozenset(following.line.use.key.digest for following in one.coverage.needed(target_frac)) - held
            for one, held in zip(found, chosen, strict=True)
        ]
        if not any(more):
            return found
        chosen = [held | added for held, added in zip(chosen, more, strict=True)]


def _chosen(workload: Workload, types: Sequence[str] | None) -> frozenset[str] | None:
    from gpuledger.ops.totals.coverage import digests_of_types

    return None if types is None else frozenset(digests_of_types(workload, types))


def _most_called(workload: Workload) -> str:
    return max(workload.uses, key=lambda use: use.count).key.digest


def _sum(
    workloads: Sequence[Workload],
    shelf: EnvironmentRecords,
    chosen: Sequence[frozenset[str] | None],
    fitting: FitProgress | None,
) -> list[Summed]:
    from gpuledger.ops.predict.choose import cache_folder, stand_in
    from gpuledger.ops.totals.coverage import cover
    from gpuledger.ops.totals.sum import sum_up

    predictor, _ = stand_in(shelf, cache_folder(), fitting)
    found = []
    for workload, wanted in zip(workloads, chosen, strict=True):
        records = shelf.records_for(workload)
        total = sum_up(workload, records, shelf.environment, energy_predictor=predictor, only=wanted)
        everything = sum_up(workload, records, shelf.environment, predictor=predictor)
        found.append(Summed(workload, total, cover(everything, wanted), wanted))
    return found
