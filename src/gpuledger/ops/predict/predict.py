"""Predict operators that were not measured, on the database's GPU or on another one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.errors import InputError
from gpuledger.files.npz import read_arrays
from gpuledger.files.reading import parse_json, reading
from gpuledger.files.writing import output
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.predict.beyond import Best, drawn_to_best
from gpuledger.ops.predict.features import NAMES, Features, features_of
from gpuledger.ops.predict.fit import (
    UNFIT,
    Example,
    Model,
    Quantity,
    Range,
    doublings_beyond,
    operations_of,
    out_of_range,
    time_target,
)
from gpuledger.ops.predict.law import Operation, times_ns
from gpuledger.ops.predict.process import Process
from gpuledger.ops.predict.roof import Roof
from gpuledger.ops.predict.trees import Forest, Levels
from gpuledger.ops.totals.cost import Cost
from gpuledger.ops.totals.sum import PREDICTED

VERSION = 8
"""Version of a model's file."""
GUESS = 4.0
"""Factor of the interval up and down if an operator is only known by its roofline."""
_QUANTITIES = ("time", "power")


@dataclass(frozen=True)
class Prediction:
    """One operator's predicted cost. ``warning`` says why it is outside the range of the examples, or is empty."""

    cost: Cost
    warning: str


class FittedPredictor:
    """Predicts costs on the GPU of ``roof``: the fitted ratio to the roofline, times this GPU's roofline."""

    def __init__(self, model: Model, roof: Roof | None = None) -> None:
        self._model = model
        self.roof = roof or model.roof

    def costs(self, keys: Sequence[OperatorKey], hot: Sequence[bool]) -> list[Cost]:
        """Return the cost of one call of each operator."""
        return [prediction.cost for prediction in self.predictions(keys, hot)]

    def predictions(self, keys: Sequence[OperatorKey], hot: Sequence[bool]) -> list[Prediction]:
        """Return the cost of one call of each operator, with warnings.

        Raises:
            InputError: the arguments of an operator are not those of a call; they can come from a file.
        """
        if not keys:
            return []
        try:
            with reading("operators to predict", UNFIT):
                operations, features = self._described(keys, hot)
        except InputError:
            for key, is_hot in zip(keys, hot, strict=True):  # name the one
                with reading(key.text, UNFIT):
                    self._described([key], [is_hot])
            raise
        works = [operation.work for operation in operations]
        laws_ns = times_ns(operations, self.roof, self._model.laws)
        beyond = np.array(
            [doublings_beyond(key, self._model.ranges, work) for key, work in zip(keys, works, strict=True)]
        )
        shares = self._model.time.predict(features, beyond)
        drawn = drawn_to_best(operations, shares[0], self._model.best, self._model.roof)
        times = [laws_ns * np.exp2(share + drawn) for share in shares]
        powers = None
        limit_w = self.roof.power_limit_w
        if self._model.power is not None and limit_w:
            shares = self._model.power.predict(features, beyond)
            powers = [np.minimum(np.exp2(share), 1.0) * limit_w for share in shares]
        return [
            Prediction(self._cost(place, times, powers), out_of_range(key, self._model.ranges, work))
            for place, (key, work) in enumerate(zip(keys, works, strict=True))
        ]

    def _described(self, keys: Sequence[OperatorKey], hot: Sequence[bool]) -> tuple[list[Operation], Features]:
        operations = operations_of(keys)
        works, held = [one.work for one in operations], [one.held for one in operations]
        return operations, features_of(keys, hot, self.roof, works, held)

    @staticmethod
    def _cost(place: int, times: Sequence[Any], powers: Sequence[Any] | None) -> Cost:
        middle_ns, low_ns, high_ns = (float(values[place]) for values in times)
        if powers is None:
            return Cost(middle_ns, low_ns, high_ns, source=PREDICTED)
        middle_w, low_w, high_w = (float(values[place]) for values in powers)
        return Cost(
            middle_ns,
            low_ns,
            high_ns,
            middle_w * middle_ns / 1e9,
            low_w * low_ns / 1e9,
            high_w * high_ns / 1e9,
            source=PREDICTED,
        )


class RoofPredictor:
    """Predicts costs from the roofline and the median ratio to it, if there are too few measurements for a fit.

    Args:
        roof: The GPU's roofline.
        examples: The measured operators.
    """

    def __init__(self, roof: Roof, examples: Sequence[Example]) -> None:
        self._roof = roof
        self._times = float(np.exp2(np.median(time_target(examples, roof)))) if examples else 1.0
        powers = [example.power_w for example in examples if example.power_w]
        self._power_w = float(np.median(powers)) if powers else None

    def costs(self, keys: Sequence[OperatorKey], hot: Sequence[bool]) -> list[Cost]:
        """Return the cost of one call of each operator. The error is unknown, so the interval is wide."""
        return [self._cost(key) for key in keys]

    def _cost(self, key: OperatorKey) -> Cost:
        time_ns = self._times * self._roof.time_ns(key, work_of(key))
        cost = Cost(time_ns, time_ns / GUESS, time_ns * GUESS, source=PREDICTED)
        if self._power_w is None:
            return cost
        energies = (self._power_w * value / 1e9 for value in (time_ns, time_ns / GUESS, time_ns * GUESS))
        middle, low, high = energies
        return replace(cost, energy_j=middle, energy_low_j=low, energy_high_j=high)


def save_model(model: Model, place: Path) -> None:
    """Write a model as numpy arrays and JSON text, which cannot run code when read."""
    facts = {
        "version": VERSION,
        "features": NAMES,
        "roof": asdict(model.roof),
        "laws": model.laws,
        "best": {name: asdict(one) for name, one in model.best.items()},
        "ranges": {name: asdict(one) for name, one in model.ranges.items()},
        "widen": {"time": model.time.widen, "power": None if model.power is None else model.power.widen},
        "examples": model.examples,
        "database_digest": model.database_digest,
    }
    arrays: dict[str, Any] = {"facts": np.array(json.dumps(facts))}
    for name in _QUANTITIES:
        quantity: Quantity | None = getattr(model, name)
        if quantity is not None:
            arrays.update(quantity.process.arrays(f"{name}.process"))
            arrays.update(quantity.forest.arrays(f"{name}.forest"))
            levels = quantity.levels
            arrays |= {f"{name}.kinds": levels.kinds, f"{name}.levels": levels.values, f"{name}.other": levels.other}
    with output(place) as stream:
        np.savez_compressed(stream, **arrays)


def load_model(place: Path) -> Model:
    """Return the model in a file.

    Raises:
        InputError: it is missing, damaged, or was made for other features.
    """
    hint = "Fit the model again with: gpuledger ops fit"
    with reading(place, "not a fitted model, or damaged", hint):
        arrays = read_arrays(place)
        facts = parse_json(str(arrays["facts"]).encode(), place)
        if facts["version"] != VERSION or tuple(facts["features"]) != NAMES:
            raise InputError(f"{place}: the model was fitted by another version of gpuledger", hint=hint)
        quantities = {name: _quantity(name, facts["widen"][name], arrays) for name in _QUANTITIES}
        ranges = {name: Range(tuple(one["flops"]), tuple(one["bytes"])) for name, one in facts["ranges"].items()}
        laws = {name: tuple(factors) for name, factors in facts["laws"].items()}
        best = {name: Best(float(one["share"]), float(one["largest_ns"])) for name, one in facts["best"].items()}
        roof, examples, digest = Roof(**facts["roof"]), facts["examples"], facts["database_digest"]
    time = quantities["time"]
    if time is None:
        raise InputError(f"{place}: the model has no times", hint=hint)
    return Model(roof, laws, best, time, quantities["power"], ranges, examples, digest)


def _quantity(name: str, widen: float | None, arrays: Any) -> Quantity | None:
    if widen is None:
        return None
    levels = Levels(arrays[f"{name}.kinds"], arrays[f"{name}.levels"], float(arrays[f"{name}.other"]))
    process, forest = Process.of_arrays(f"{name}.process", arrays), Forest.of_arrays(f"{name}.forest", arrays)
    return Quantity(process, levels, forest, widen)
