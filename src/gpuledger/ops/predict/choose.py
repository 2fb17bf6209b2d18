"""Select a database's records of one GPU, and a predictor for missing operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache as once
from importlib.resources import as_file, files
from pathlib import Path

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.errors import EmptyRunError, InputError, UsageError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.readable import ReadableDatabase
from gpuledger.ops.database.records import Environment, Record, digest_of
from gpuledger.ops.predict.fit import LEAST_EXAMPLES, Example, Model, examples_of, fit
from gpuledger.ops.predict.fitting import OnProgress, no_progress
from gpuledger.ops.predict.predict import FittedPredictor, RoofPredictor, load_model, save_model
from gpuledger.ops.predict.roof import Roof, roof_of_card, roof_of_measurements
from gpuledger.ops.totals.near_keys import records_for
from gpuledger.ops.totals.sum import Sum, sum_up
from gpuledger.ops.workloads.workload import Workload
from gpuledger.simulate.catalogue import GpuModel, find_card

FitProgress = Callable[[int], AbstractContextManager[OnProgress]]
"""Returns a context around a long fit to this number of measurements. It yields what to call with the share done."""
UNMEASURED = "has no measurements"
STAND_IN = "h200"
"""GPU on which models are captured if the catalogue does not have the requested one."""
MANY_RECORDS = 1000
"""Number of records from which a fit takes long enough (some seconds) to show its progress."""


@dataclass(frozen=True)
class EnvironmentRecords:
    """A database's records of one device and software."""

    environment: Environment
    records: tuple[Record, ...]
    keys: Mapping[str, OperatorKey]
    others: tuple[Environment, ...]

    @property
    def examples(self) -> list[Example]:
        """Return the measured operators for a fit."""
        return examples_of(self.records, self.keys)

    def records_for(self, workload: Workload) -> tuple[Record, ...]:
        """Return the records for a workload's sum, including imported ones with other settings."""
        return records_for(workload, self.records, self.keys)

    @property
    def digest(self) -> str:
        """Return a digest of the records, which changes if one is added."""
        return digest_of(sorted(record.digest for record in self.records))


def open_environment_records(database: ReadableDatabase, card: str | None = None) -> EnvironmentRecords:
    """Return the records of the GPU ``card``, or by default of the device measured last.

    Raises:
        EmptyRunError: the database is empty.
        UsageError: it has no records of that GPU.
    """
    environments, records = _environments_and_records(database)
    if not records:
        raise EmptyRunError(
            f"{database.url}: the database is empty", hint="Measure operators with: gpuledger ops measure WORKLOAD"
        )
    measured = {record.environment_digest: record.measured_ns for record in records}  # the newest of each: oldest first
    wanted = [digest for digest in measured if card is None or _is_named(environments[digest], card)]
    exact = [digest for digest in wanted if card is not None and _plain(environments[digest].title) == _plain(card)]
    wanted = exact or wanted  # "A30" does not mean "A30 at 900 MHz"
    if not wanted:
        raise UsageError(
            f"--gpu {card}: {database.url} has no measurements of this GPU",
            hint=f"Choose one of its GPUs: {cards_text(environments.values())}",
        )
    chosen = environments[max(wanted, key=lambda digest: measured[digest])]
    return _environment_records(database, environments, records, chosen)


def records_of_environment(database: ReadableDatabase, environment: Environment) -> EnvironmentRecords:
    """Return the records of exactly this device and software, possibly none."""
    return _environment_records(database, *_environments_and_records(database), environment)


def _environments_and_records(database: ReadableDatabase) -> tuple[dict[str, Environment], list[Record]]:
    """Return all environments by digest, and all records.

    Raises:
        InputError: the environment of a record is missing.
    """
    environments, records = database.environments(), database.records()
    if any(record.environment_digest not in environments for record in records):
        raise InputError(f"{database.url}: damaged database: the environment of a record is missing")
    return environments, records


def _environment_records(
    database: ReadableDatabase,
    environments: Mapping[str, Environment],
    records: Sequence[Record],
    environment: Environment,
) -> EnvironmentRecords:
    digest = environment.digest
    others = dict.fromkeys(record.environment_digest for record in records if record.environment_digest != digest)
    own = tuple(record for record in records if record.environment_digest == digest)
    return EnvironmentRecords(environment, own, database.keys(), tuple(environments[other] for other in others))


def cards_text(environments: Iterable[Environment]) -> str:
    """Return the distinct GPUs of environments as text."""
    names = dict.fromkeys(one.title for one in environments)
    return ", ".join(names) or "none"


def _is_named(environment: Environment, card: str) -> bool:
    wanted, name = _plain(card), _plain(environment.title)
    known = _catalogued(card)
    return wanted in name or (known is not None and _plain(known.name) == name)


def _plain(text: str) -> str:
    return text.lower().replace("-", " ").removeprefix("nvidia ").strip()


def _catalogued(name: str) -> GpuModel | None:
    try:
        return find_card(name)
    except UsageError:
        return None


def roof_of_records(shelf: EnvironmentRecords) -> Roof:
    """Return the roofline of the records' GPU: from the data sheet, or else from the measurements."""
    card = _catalogued(shelf.environment.card)
    if card is not None:
        return roof_of_card(card)
    examples = shelf.examples
    return roof_of_measurements(shelf.environment.title, [(one.key, work_of(one.key), one.time_ns) for one in examples])


def model_name(digest: str) -> str:
    """Return the name of the file of a model that is fitted to records with a digest."""
    return f"operators-{digest[:24]}.model"


def model_of(shelf: EnvironmentRecords, cache: Path | None = None, progress: FitProgress | None = None) -> Model:
    """Return the model fitted to the records, cached in the folder ``cache``. ``progress`` is around a long fit.

    The one for the shipped measurements is in this package.

    Raises:
        EmptyRunError: too few records.
        UsageError: scikit-learn is not installed.
    """
    shipped = _shipped_model(model_name(shelf.digest))
    if shipped is not None:
        return shipped
    place = None if cache is None else cache / model_name(shelf.digest)
    if place is not None and place.exists():
        try:
            return load_model(place)
        except InputError:  # from an older gpuledger: fit again
            place.unlink()
    is_shown = progress is not None and len(shelf.records) >= MANY_RECORDS
    with progress(len(shelf.records)) if progress and is_shown else nullcontext(no_progress) as on_progress:
        model = fit(shelf.examples, roof_of_records(shelf), shelf.digest, on_progress)
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        save_model(model, place)
    return model


@once
def _shipped_model(name: str) -> Model | None:
    """Return a model that comes with gpuledger; it is read, and its covariances are inverted, once per process."""
    place = files("gpuledger.ops.predict").joinpath("measured", name)
    if not place.is_file():
        return None
    with as_file(place) as path:
        return load_model(path)


def stand_in(
    shelf: EnvironmentRecords, cache: Path | None = None, progress: FitProgress | None = None
) -> tuple[FittedPredictor | RoofPredictor, str]:
    """Return a predictor for operators missing from the database, and a short description of it."""
    examples = shelf.examples
    if len(examples) >= LEAST_EXAMPLES:
        try:
            return FittedPredictor(model_of(shelf, cache, progress)), f"fitted to {len(examples)} measured operators"
        except UsageError:  # scikit-learn is an extra
            pass
    roof = roof_of_records(shelf)
    return RoofPredictor(roof, examples), f"roofline, scaled by {len(examples)} measured operators"


def sum_measured(workload: Workload, shelf: EnvironmentRecords, cache: Path | None = None) -> Sum:
    """Return a workload's sum of measured operators. Energy is predicted for those with a measured time only."""
    return sum_up(workload, shelf.records_for(workload), shelf.environment, energy_predictor=stand_in(shelf, cache)[0])


def captured_on(environment: Environment) -> str:
    """Return the GPU on which models are captured for an environment: itself if it is in the catalogue."""
    return STAND_IN if is_gpu(environment) and _catalogued(environment.card) is None else environment.card


def is_gpu(environment: Environment) -> bool:
    """Return whether an environment is one of a GPU, also if it was imported."""
    return environment.cuda is not None or environment.flags.get("source") is not None


def is_catalogued(name: str) -> bool:
    """Return whether the catalogue has a GPU of this name."""
    return _catalogued(name) is not None


def predictor_for(
    database: ReadableDatabase, gpu: str | None, cache: Path | None = None, progress: FitProgress | None = None
) -> tuple[FittedPredictor, EnvironmentRecords, tuple[str, ...]]:
    """Return a predictor for a GPU: from its own records, or else from those of the GPU measured last.

    Raises:
        UsageError: neither the database nor the catalogue has the GPU; the database's GPUs are named.
        EmptyRunError: the database has too few records.
    """
    try:
        shelf = open_environment_records(database, gpu)
    except UsageError as error:
        card = _catalogued(gpu or "")
        if card is None:
            raise UsageError(
                f"--gpu {gpu}: neither in the database nor in the catalogue of GPUs",
                hint=f"Choose {cards_text(database.environments().values())}, or one that gpuledger gpus lists",
            ) from error
        shelf = open_environment_records(database)
        if _catalogued(shelf.environment.card) is None:
            raise UsageError(
                f"--gpu {gpu}: not measured, and the database has no GPU of the catalogue to predict it from",
                hint="Measure on a GPU of the catalogue first. The database has "
                f"{cards_text(database.environments().values())}",
            ) from error
        note = (
            f"{card.name} {UNMEASURED}: this is predicted from those of an {shelf.environment.card} and the data "
            "sheets of both GPUs."
        )
        return FittedPredictor(model_of(shelf, cache, progress), roof_of_card(card)), shelf, (note,)
    return FittedPredictor(model_of(shelf, cache, progress)), shelf, ()


def cache_folder() -> Path:
    """Return the folder of cached models."""
    from gpuledger.collect.sampling.calibrate import cache_path

    return cache_path().parent
