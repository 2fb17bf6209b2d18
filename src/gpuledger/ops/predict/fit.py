"""Fit a model of the time and power of operators to database records, relative to the GPU's roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuledger.analyze.operator_work.formulas import CallWork, family_of, work_of
from gpuledger.errors import EmptyRunError
from gpuledger.files.reading import reading
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.host_overhead import is_operator
from gpuledger.ops.database.method import Mode
from gpuledger.ops.database.records import Record
from gpuledger.ops.predict.beyond import Best, best_of
from gpuledger.ops.predict.features import Features, Floats, features_of, shape_family
from gpuledger.ops.predict.fitting import OnProgress, no_progress, one_thread, part_of
from gpuledger.ops.predict.law import Laws, Operation, learn_laws, times_ns
from gpuledger.ops.predict.process import Process, learn_process
from gpuledger.ops.predict.roof import Roof
from gpuledger.ops.predict.trees import Forest, Levels, learn, learn_levels
from gpuledger.ops.predict.workspaces import held_by

LEAST_NS = 100.0
LEAST_EXAMPLES = 20
INSIDE_FRAC = 0.9
"""Share of new operators that should be within the interval."""
UNSURE = 0.8
"""Standard deviation of the process, in doublings, above which only the trees are used."""
LEAST_WEIGHT = 0.05
"""Least weight for which the trees are evaluated."""
PREPARED_FRAC, HALF_FRAC = 0.2, 0.55
"""Shares of a fit's duration until the features are computed, and until half of the rest is done."""
RANGE_SLACK = 1.0
"""Doublings beyond the largest and the smallest example that still count as within the range."""


@dataclass(frozen=True)
class Example:
    """One measured operator. ``power_w`` is the mean power of its call; None if only time was measured."""

    key: OperatorKey
    is_hot: bool
    time_ns: float
    power_w: float | None
    group: str


@dataclass(frozen=True)
class Quantity:
    """The model of one quantity, as log2 of its ratio to the roofline.

    Attributes:
        process: A Gaussian process.
        levels, forest: Boosted trees. Their weight grows with the uncertainty of the process.
        widen: Half the interval, in standard deviations of the process.
    """

    process: Process
    levels: Levels
    forest: Forest
    widen: float

    def predict(self, features: Features, beyond: Floats) -> tuple[Floats, Floats, Floats]:
        """Return prediction and interval (middle, low, high), float64[n] each, as log2 of the ratio to the roofline.

        Args:
            features: Features of the operators.
            beyond: Doublings of each beyond the largest example of its name. Trees cannot extrapolate, so they are not
                used for such operators.
        """
        near, deviation = self.process.predict(features)
        weight = np.clip(deviation / UNSURE, 0.0, 1.0) * np.clip(1 - beyond, 0.0, 1.0)
        asked = np.flatnonzero(weight > LEAST_WEIGHT)  # trees take most of the time
        levels = self.levels.of(features.kinds[asked])
        far = self.forest.predict(np.column_stack([features.values[asked], levels]))
        middle = near.copy()
        middle[asked] += weight[asked] * (far - near[asked])
        half = self.widen * deviation
        return middle, np.minimum(near - half, middle), np.maximum(near + half, middle)


@dataclass(frozen=True)
class Range:
    """Range of the examples of one operator name: log2 of their least and most FLOPs and bytes."""

    flops: tuple[float, float]
    bytes: tuple[float, float]


@dataclass(frozen=True)
class Model:
    """The model fitted for one GPU. ``power`` is None if the database has no energy.

    ``time`` predicts log2 of an operator's time over its law. ``best`` is for operators beyond the range.
    """

    roof: Roof
    laws: Laws
    best: Mapping[str, Best]
    time: Quantity
    power: Quantity | None
    ranges: Mapping[str, Range]
    examples: int
    database_digest: str


UNFIT = "arguments that do not fit the operator"


def examples_of(records: Sequence[Record], keys: Mapping[str, OperatorKey]) -> list[Example]:
    """Return one example for each operator and mode, from the newest valid record.

    Operators below :data:`LEAST_NS` run nothing on the device, and are left out.

    Raises:
        InputError: the arguments of an operator are not those of a call; they can come from a file.
    """
    newest: dict[tuple[str, bool], Example] = {}
    for record in sorted(records, key=lambda record: record.measured_ns):
        key = keys.get(record.key_digest)
        time_ns = record.time_median_ns or 0.0
        if record.status != "ok" or key is None or not is_operator(key) or time_ns < LEAST_NS or is_share(record):
            continue
        is_hot = record.method.get("mode") == Mode.HOT
        power_w = None
        if record.energy_median_j is not None:
            windows = [block["call_ns"] for block in record.blocks if block.get("kind") == "energy"]
            span_ns = float(np.mean(windows)) if windows else time_ns
            power_w = record.energy_median_j / (span_ns / 1e9)
        known = newest.get((record.key_digest, is_hot))
        if power_w is None and known is not None:
            power_w = known.power_w
        with reading(key.text, UNFIT):
            family = shape_family(key)
        newest[record.key_digest, is_hot] = Example(key, is_hot, time_ns, power_w, family)
    return list(newest.values())


def is_share(record: Record) -> bool:
    """Return whether a record is a share of what several operators took together."""
    return str(record.method.get("value", "")).startswith("share of ")


def fit(
    examples: Sequence[Example], roof: Roof, database_digest: str = "", on_progress: OnProgress = no_progress
) -> Model:
    """Return the model fitted to the examples. ``on_progress`` is called with the share of the fit that is done.

    Raises:
        EmptyRunError: there are too few.
        UsageError: scikit-learn is not installed.
    """
    if len(examples) < LEAST_EXAMPLES:
        raise EmptyRunError(
            f"the database has {len(examples)} measured operators, but a prediction needs at least {LEAST_EXAMPLES}",
            hint="Measure more operators with: gpuledger ops measure",
        )
    with one_thread():
        return _fit(examples, roof, database_digest, on_progress)


def _fit(examples: Sequence[Example], roof: Roof, database_digest: str, on_progress: OnProgress) -> Model:
    powers = [example.power_w for example in examples if example.power_w]
    if roof.power_limit_w is None and powers:
        roof = replace(roof, power_limit_w=max(powers))
    operations = operations_of([one.key for one in examples])
    laws = learn_laws(operations, np.array([one.time_ns for one in examples]), roof)
    features = features_of(
        [operation.key for operation in operations],
        [one.is_hot for one in examples],
        roof,
        [operation.work for operation in operations],
        [operation.held for operation in operations],
    )
    on_progress(PREPARED_FRAC)
    groups = group_numbers(examples)
    powered = np.array([bool(one.power_w) for one in examples])
    power = None
    if np.count_nonzero(powered) >= LEAST_EXAMPLES and roof.power_limit_w:
        shares = np.log2([one.power_w / roof.power_limit_w for one in examples if one.power_w])
        power = _quantity(features[powered], shares, groups[powered], part_of(on_progress, PREPARED_FRAC, HALF_FRAC))
    target = time_target(examples, roof, laws, operations)
    time = _quantity(features, target, groups, part_of(on_progress, HALF_FRAC, 1.0))
    return Model(
        roof, laws, best_of(operations, target, roof), time, power, _ranges(operations), len(examples), database_digest
    )


def operations_of(keys: Sequence[OperatorKey]) -> list[Operation]:
    """Return operators with work and workspaces, as laws need them."""
    return [Operation(key, work_of(key), held) for key, held in zip(keys, held_by(keys), strict=True)]


def time_target(
    examples: Sequence[Example], roof: Roof, laws: Laws | None = None, operations: Sequence[Operation] | None = None
) -> Floats:
    """Return log2 of each example's time over its law, or over the roofline without laws."""
    operations = operations or operations_of([one.key for one in examples])
    return np.log2(np.array([one.time_ns for one in examples]) / times_ns(operations, roof, laws or {}))


def group_numbers(examples: Sequence[Example]) -> npt.NDArray[np.int64]:
    """Return a number for each example, equal within a shape family, which is not split."""
    names = {name: number for number, name in enumerate(dict.fromkeys(one.group for one in examples))}
    return np.array([names[one.group] for one in examples], dtype=np.int64)


def folds_of(groups: npt.NDArray[np.int64], folds: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return the fold of each row, int64[n]; equal for rows of one group."""
    count = int(groups.max(initial=-1)) + 1
    places = np.random.default_rng(seed).permutation(count) % max(min(folds, count), 1)
    return np.asarray(places[groups])


def _quantity(features: Features, target: Floats, groups: npt.NDArray[np.int64], on_progress: OnProgress) -> Quantity:
    """Return the model of a quantity, with an interval that contains 90 % of new operators.

    Each shape family is left out in turn. The errors of its operators, in standard deviations of the process, determine
    the width of the interval (conformal prediction).
    """
    process = learn_process(features, target, groups, part_of(on_progress, 0.0, HALF_FRAC))
    misses, deviations = process.left_out(groups)
    widen = float(np.quantile(np.abs(misses) / deviations, INSIDE_FRAC))
    levels, without = learn_levels(features.kinds, target, groups)
    forest = learn(np.column_stack([features.values, without]), target)
    on_progress(1.0)
    return Quantity(process, levels, forest, widen)


def _ranges(operations: Sequence[Operation]) -> dict[str, Range]:
    sizes: dict[str, list[tuple[float, float]]] = {}
    for one in operations:
        work = one.work
        sizes.setdefault(one.key.name, []).append((float(np.log2(work.flops + 1)), float(np.log2(work.bytes + 1))))
    return {
        name: Range(
            (min(flops for flops, _ in found), max(flops for flops, _ in found)),
            (min(size for _, size in found), max(size for _, size in found)),
        )
        for name, found in sizes.items()
    }


def doublings_beyond(key: OperatorKey, ranges: Mapping[str, Range], work: CallWork) -> float:
    """Return the doublings of an operator beyond the largest example of its name; 0 within, or for a new name."""
    known = ranges.get(key.name)
    if known is None:
        return 0.0
    return float(max(np.log2(work.flops + 1) - known.flops[1], np.log2(work.bytes + 1) - known.bytes[1], 0.0))


def out_of_range(key: OperatorKey, ranges: Mapping[str, Range], work: CallWork | None = None) -> str:
    """Return why an operator is outside the range of the examples; "" if it is not."""
    known = ranges.get(key.name)
    if known is None:
        return f"no {family_of(key)} operator of this name was measured"
    work = work or work_of(key)
    for what, value, (low, high) in (("FLOPs", work.flops, known.flops), ("bytes", work.bytes, known.bytes)):
        size = float(np.log2(value + 1))
        if size > high + RANGE_SLACK:
            return f"{2 ** (size - high):.1f} times the {what} of the largest measured"
        if size < low - RANGE_SLACK:
            return f"{2 ** (low - size):.1f} times fewer {what} than the smallest measured"
    return ""
