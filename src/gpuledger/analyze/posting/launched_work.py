"""FLOPs and bytes of profiled kernels and copies, from the input shapes of the operators that launched them.

An operator's work is divided among its kernels in proportion to their time, because a trace does not show which kernel
does what. Work is unknown for operators that are not PyTorch's own, for operators without a formula, and for tensor
lists of unknown dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.operator_work.formulas import CallWork, known_work_of
from gpuledger.analyze.operator_work.measured_watts import numbers_of
from gpuledger.analyze.operator_work.power_model import TF32
from gpuledger.model.journal.journal import ActivityKind
from gpuledger.operator_key import SPEAKERS, OperatorKey, tensors_in

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_OURS = "aten::"

_BY_TENSORS = frozenset(
    f"aten::{name}" for name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
)
"""Operators with a list of tensors that a trace does not describe."""

_SPELLED = {
    "clamp_min": "clamp",
    "clamp_min_": "clamp_",
    "log_sigmoid_forward": "sigmoid",
    "log_sigmoid_backward": "sigmoid_backward",
}
"""Internal operators -> operator with the same work that has a formula."""

DTYPES = {
    "bool": "bool",
    "unsigned char": "uint8",
    "signed char": "int8",
    "short": "int16",
    "short int": "int16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}
"""Kineto's dtype names (C++) -> PyTorch's."""

_NUMBERS = ("Scalar", "ScalarList", "")


@dataclass(frozen=True)
class SpanWork:
    """Columns with one entry per span: its share of its operator's FLOPs and bytes; NaN if unknown.

    ``numbers`` is the dtype of the computation: that of the first floating-point input, or ``tf32`` if the kernel's
    name says so; "" if unknown.
    """

    flops: F64
    moved_bytes: F64
    numbers: NDArray[np.object_]


def launchers(table: dict[str, NDArray[Any]], chosen: I64) -> I64:
    """Return the row of the host event that launched each of the ``chosen`` device events; -1 if unknown."""
    host = np.flatnonzero(table["kind"] == ActivityKind.HOST)
    if not host.size:
        return np.full(chosen.size, -1, dtype=np.int64)
    order = host[np.argsort(table["launch_id"][host], kind="stable")]
    known = table["launch_id"][order]
    wanted = table["launch_id"][chosen]
    place = np.clip(np.searchsorted(known, wanted), 0, known.size - 1)
    return np.where((known[place] == wanted) & (wanted != 0), order[place], -1)


def span_work(
    table: dict[str, NDArray[Any]], facts: dict[str, Any], chosen: I64, launch: I64, parent: I64, steps_later: I64
) -> SpanWork:
    """Return the work of spans.

    Args:
        table: The journal's activities.
        facts: The journal's facts.
        chosen: Rows of the spans.
        launch: Rows of the host events that launched them; -1 if unknown.
        parent: For each activity, the row of the enclosing host event; -1 if there is none.
        steps_later: For each span, the number of steps between its launch and itself.
    """
    words, inputs = facts.get("activity_names") or [], facts.get("operator_inputs") or []
    count = chosen.size
    found = SpanWork(np.full(count, np.nan), np.full(count, np.nan), np.full(count, "", dtype=object))
    inputs_ids = table["inputs_id"]
    if not inputs or inputs_ids.size != table["kind"].size:
        return found
    speakers = {row: _speaker(row, table["name_id"], parent, words) for row in np.unique(launch[launch >= 0]).tolist()}
    rows = np.flatnonzero((launch >= 0) & (table["kind"][chosen] != ActivityKind.HOST))
    speaking = np.array([speakers[row] for row in launch[rows].tolist()], dtype=np.int64)
    share = _shares(speaking, steps_later[rows], table["duration_ns"][chosen[rows]])
    known: dict[tuple[int, int, str], tuple[CallWork, str] | None] = {}
    for span, row, part in zip(rows.tolist(), speaking.tolist(), share.tolist(), strict=True):
        kernel = str(words[table["name_id"][chosen[span]]])
        call = int(table["name_id"][row]), int(inputs_ids[row]), numbers_of(kernel)
        if call not in known:
            known[call] = None if call[1] < 0 else work_of_call(str(words[call[0]]), inputs[call[1]], call[2])
        work = known[call]
        if work is not None:
            found.flops[span], found.moved_bytes[span] = part * work[0].flops, part * work[0].bytes
            found.numbers[span] = TF32 if work[1] == "float32" and is_tf32(kernel) else work[1]
    return found


def is_tf32(kernels: str) -> bool:
    """Return whether float32 kernels run on tensor cores (TF32), by their names."""
    return any(word in kernels for word in ("tf32", "tensorop", "1688"))


def work_of_call(operator: str, inputs: list[Any], listed: str) -> tuple[CallWork, str] | None:
    """Return the work of one call and the dtype of the computation ("" for integers); None if unknown.

    Args:
        operator: Name as in a trace, ``aten::mm``.
        inputs: Shapes, strides, dtypes and values, as from :func:`collect.adapter.kineto_events.inputs_of`.
        listed: The dtype in tensor lists, which a trace does not contain.
    """
    is_told = operator.startswith(_OURS) and operator not in _BY_TENSORS
    arguments = arguments_of(inputs, listed) if is_told else None
    if arguments is None:
        return None
    name = operator.removeprefix(_OURS)
    key = OperatorKey(f"aten.{_SPELLED.get(name, name)}", tuple(arguments))
    work = telling_work_of(key)
    if work is None:
        return None
    return work, next((str(one["dtype"]) for one in key.tensors() if "float" in one["dtype"]), "")


def telling_work_of(key: OperatorKey) -> CallWork | None:
    """Return the work of one call; None if unknown, or if it does not predict the GPU's power.

    Grouped convolutions come nowhere near a GPU's peaks, but still draw half of its power.
    """
    work = known_work_of(key)
    return None if work is None or work.groups > 1 else work


def arguments_of(inputs: list[Any], listed: str) -> list[Any] | None:
    """Return a call's arguments in the form of an operator's key; None if one has an unknown type."""
    shapes, strides, dtypes, values = inputs
    strides = strides or [None] * len(shapes)
    found: list[Any] = []
    for shape, stride, dtype, value in zip(shapes, strides, dtypes, values, strict=False):
        if dtype in _NUMBERS:
            found.append(value)
        elif dtype == "TensorList" and listed and shape and all(isinstance(one, list) for one in shape):
            found.append([_tensor(one, None, listed) for one in shape])
        elif dtype in DTYPES:
            found.append(_tensor(shape, stride, DTYPES[dtype]))
        else:
            return None
    return found if any(True for _ in tensors_in(found)) else None


def _tensor(shape: list[int], stride: list[int] | None, dtype: str) -> dict[str, Any]:
    found: dict[str, Any] = {"shape": list(shape), "dtype": dtype}
    return found | ({"stride": list(stride)} if stride is not None and len(stride) == len(shape) else {})


def _speaker(row: int, name_id: NDArray[Any], parent: I64, words: list[str]) -> int:
    """Return the nearest event around a launch, or the launch itself, that represents the kernels below it."""
    around = row
    while around >= 0:
        if words[name_id[around]] in SPEAKERS:
            return around
        around = int(parent[around])
    return row


def _shares(speaking: I64, steps_later: I64, duration_ns: I64) -> F64:
    """Return each kernel's share of its operator's time in its step."""
    calls = np.stack([speaking, steps_later], axis=1)
    place = np.unique(calls, axis=0, return_inverse=True)[1].reshape(-1)
    total = np.bincount(place, weights=duration_ns) if place.size else np.zeros(0)
    alike = np.bincount(place) if place.size else np.zeros(0)
    share: F64 = np.where(total[place] > 0, duration_ns / np.maximum(total[place], 1), 1 / alike[place])
    return share
