"""Measurements of whole models in the database, with keys that name a model. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.host_overhead import NAMESPACE
from gpuledger.ops.database.records import Record

OPERATOR = f"{NAMESPACE}whole_model"
_MODES = ("inference", "training")


@dataclass(frozen=True)
class WholeModel:
    """A model by name, with input size and mode."""

    model: str
    size: tuple[int, ...]
    mode: Literal["inference", "training"]

    @property
    def key(self) -> OperatorKey:
        """Return the key of its measurements."""
        return OperatorKey(OPERATOR, (self.model, self.mode, {"shape": list(self.size), "dtype": "float32"}))


def whole_model_of(key: OperatorKey) -> WholeModel | None:
    """Return the model of a key; None for the key of an operator."""
    if key.operator != OPERATOR or len(key.inputs) != 3:
        return None
    model, mode, tensor = key.inputs
    if not isinstance(model, str) or mode not in _MODES or not isinstance(tensor, dict):
        return None
    return WholeModel(model, tuple(int(size) for size in tensor["shape"]), mode)


def whole_models(records: Sequence[Record], keys: Mapping[str, OperatorKey]) -> dict[WholeModel, Record]:
    """Return the newest valid record of each whole model."""
    found: dict[WholeModel, Record] = {}
    for record in sorted(records, key=lambda record: record.measured_ns):
        key = keys.get(record.key_digest)
        model = None if key is None else whole_model_of(key)
        if model is not None and record.status == "ok" and record.time_median_ns is not None:
            found[model] = record
    return found
