"""Use measurements of an operator with other settings if those of a workload are missing. Pure.

ml-operator-profiling measured layers in training mode and one GPU with TF32 off, and summed them for models in
evaluation mode. Its rows are stored as measured; a sum uses them with a note on the difference.
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
"""Key in a record's method for the difference of the measured operator from the requested one."""
_TRAINING_PLACE = {"native_batch_norm": 5, "cudnn_batch_norm": 5}


def records_for(workload: Workload, records: Sequence[Record], keys: Mapping[str, OperatorKey]) -> tuple[Record, ...]:
    """Return the records, and for missing operators those of the same operator with other settings.

    Args:
        workload: The workload.
        records: Records of one environment.
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
    """Return a key that is equal for operators that differ in training mode, TF32, gradients or in place only."""
    inputs = list(key.inputs)
    place = _TRAINING_PLACE.get(key.name)
    if place is not None and len(inputs) > place:
        inputs[place] = None
    if key.name == "convolution_backward" and len(inputs) > 10:
        inputs[10] = None  # requested gradients: a model's first layer needs none for its input
    return json.dumps([key.name.rstrip("_"), [_plain(value) for value in inputs]], sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict) and "shape" in value:
        return {name: value[name] for name in value if name != "same"}
    return value


def difference(measured: OperatorKey, asked: OperatorKey) -> str:
    """Return how a measured operator differs from the requested one; "" if in gradients only."""
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
