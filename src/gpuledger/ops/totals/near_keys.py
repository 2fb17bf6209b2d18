"""Measurements of an operator under other settings, in place of those that a workload asks for. Pure.

ml-operator-profiling measured layers in training mode and one GPU with TF32 off, and added them up to models in
evaluation mode. Its rows are kept as they were measured; a sum takes them and says how they differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.records import Record
from gpuledger.ops.workloads.workload import Workload

SOURCE = "ml-operator-profiling"
MEASURED_AS = "measured_as"
"""Where a record's method says how its measurement differs from the operator that it stands for."""
_TRAINING_PLACE = {"native_batch_norm": 5, "cudnn_batch_norm": 5}


def records_for(workload: Workload, records: Sequence[Record], keys: Mapping[str, OperatorKey]) -> tuple[Record, ...]:
    """Return the records, and for operators without one those of the same operator under other settings.

    Args:
        workload: What is added up.
        records: Of one environment.
        keys: The database's keys by digest.
    """
    held = {record.key_digest for record in records}
    lacking = [use.key for use in workload.uses if use.key.digest not in held]
    imported = [record for record in records if record.method.get("source") == SOURCE and record.key_digest in keys]
    if not lacking or not imported:
        return tuple(records)
    near: dict[str, list[Record]] = {}
    for record in imported:
        near.setdefault(plain(keys[record.key_digest]), []).append(record)
    added = [one for key in lacking for one in _standing_in(key, near.get(plain(key), []), keys)]
    return (*records, *added)


def _standing_in(key: OperatorKey, records: Sequence[Record], keys: Mapping[str, OperatorKey]) -> Iterator[Record]:
    for record in records:
        words = difference(keys[record.key_digest], key)
        yield replace(record, key_digest=key.digest, method={**record.method, MEASURED_AS: words})


def plain(key: OperatorKey) -> str:
    """Return what operators have in common that differ by settings alone: training mode, TF32, gradients, in place."""
    inputs = list(key.inputs)
    place = _TRAINING_PLACE.get(key.name)
    if place is not None and len(inputs) > place:
        inputs[place] = None
    if key.name == "convolution_backward" and len(inputs) > 10:
        inputs[10] = None  # which gradients are wanted: a model's first layer needs none of its input
    return json.dumps([key.name.rstrip("_"), [_plain(value) for value in inputs]], sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict) and "shape" in value:
        return {name: value[name] for name in value if name != "same"}
    return value


def difference(measured: OperatorKey, asked: OperatorKey) -> str:
    """Return how a measured operator differs from the one that is asked for; empty where it is by gradients alone."""
    words = []
    place = _TRAINING_PLACE.get(measured.name)
    if place is not None and measured.inputs[place] != asked.inputs[place]:
        words.append("in training mode" if measured.inputs[place] else "in evaluation mode")
    if bool(measured.flags.get("tf32")) != bool(asked.flags.get("tf32")):
        words.append("with TF32" if measured.flags.get("tf32") else "without TF32")
    if measured.name != asked.name:
        words.append("in place" if measured.name.endswith("_") else "not in place")
    if measured.name == "convolution_backward" and measured.inputs[10:11] != asked.inputs[10:11]:
        words.append("with other gradients")
    return " and ".join(words)
