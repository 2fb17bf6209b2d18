"""Bytes that operators other than products read and write, from their inputs and the size of their result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuledger.operator_key import ITEM_BYTES, OperatorKey, is_tensor, tensor_bytes, tensors_in

Tensor = Mapping[str, Any]

_FILLS = frozenset(
    {"fill_", "zero_", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "zeros", "ones"}
    | {"full", "arange", "randint", "copy_"}
)
"""Operators that do not read the tensor that they write, or that use it only for the size of the result."""
_COMPARISONS = frozenset({"eq", "ne", "lt", "gt", "le", "ge", "isinf", "isnan", "logical_not"})
_INDEX_BYTES = 8
_PIECE_TENSORS = 64
"""Approximate number of tensors that one kernel of an operator over lists processes."""


_LAUNCHES = {"masked_fill": 2, "constant_pad_nd": 2, "_native_multi_head_attention": 4}
"""Kernels of operators that always launch the same number."""


def launches_of(key: OperatorKey) -> int:
    """Return the approximate number of kernels that one call launches.

    Source: PyTorch's own kernels. A concatenation copies piece by piece, a bias is added separately, and an operator
    that fills or masks out of place copies first.
    """
    name, values = key.name, key.arguments
    if name in ("cat", "stack"):
        return max(sum(0 not in tensor["shape"] for tensor in tensors_in(values[0])), 1)
    if name in _LAUNCHES:
        return _LAUNCHES[name]
    if name == "convolution" and len(values) > 2:
        return 1 + int(is_tensor(values[2]))
    if name == "convolution_backward" and len(values) > 10:
        return max(sum(bool(wanted) for wanted in values[10]), 1)
    if name.startswith("_foreach_"):
        return max(math.ceil(len(list(key.tensors())) / _PIECE_TENSORS), 1)
    return 1


def dense_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements, including those repeated by a stride of 0."""
    return int(math.prod(tensor["shape"])) * ITEM_BYTES[tensor["dtype"]]


def read_bytes(key: OperatorKey) -> int:
    """Return the bytes of the tensors that are read, each counted once."""
    tensors = [tensor for tensor in key.tensors() if "same" not in tensor]
    if key.name in _FILLS:
        tensors = tensors[1:] if key.name in ("fill_", "copy_") else []
    return sum(tensor_bytes(tensor) for tensor in tensors)


def written_bytes(key: OperatorKey, family: str) -> int:
    """Return the bytes of the result; for an unknown operator, those of its largest input."""
    tensors = [tensor for tensor in key.tensors() if "same" not in tensor]
    formula = _WRITTEN.get(key.name) or _WRITTEN_BY_FAMILY.get(family)
    try:
        if formula is not None:
            return formula(key)
    except (KeyError, IndexError, TypeError, ValueError):  # unknown arguments
        pass
    return max((dense_bytes(tensor) for tensor in tensors), default=0)


def _first(key: OperatorKey) -> Tensor:
    return next(key.tensors())


def _item(key: OperatorKey) -> int:
    return ITEM_BYTES[_first(key)["dtype"]]


def _of_shape(place: int) -> Callable[[OperatorKey], int]:
    """The shape of the result is an argument; its dtype is the first tensor's, otherwise a keyword's or float32."""

    def formula(key: OperatorKey) -> int:
        dtype = (key.keywords.get("dtype") or {}).get("torch")
        own = next((str(tensor["dtype"]) for tensor in key.tensors()), "int64" if key.name == "randint" else "float32")
        return int(math.prod(key.arguments[place])) * ITEM_BYTES[dtype or own]

    return formula


def _converted(key: OperatorKey) -> int:
    dtype = (key.keywords.get("dtype") or {}).get("torch")
    return int(math.prod(_first(key)["shape"])) * (ITEM_BYTES[dtype] if dtype else _item(key))


def _joined(key: OperatorKey) -> int:
    tensors = list(tensors_in(key.arguments[0]))
    return sum(int(math.prod(tensor["shape"])) for tensor in tensors) * _promoted_bytes(tensors)


def _padded(key: OperatorKey) -> int:
    shape, pads = list(_first(key)["shape"]), key.arguments[1]
    for axis in range(len(pads) // 2):
        shape[-1 - axis] += pads[2 * axis] + pads[2 * axis + 1]
    return int(math.prod(shape)) * _item(key)


def _pair(value: Any) -> list[int]:
    values = [int(one) for one in value] if isinstance(value, (list, tuple)) else [int(value)]
    return values * 2 if len(values) == 1 else values


def pooled_places(key: OperatorKey) -> int:
    """Return the number of output elements of a two-dimensional pooling."""
    values, shape = key.arguments, _first(key)["shape"]
    ceil_place = 5 if key.name == "max_pool2d_with_indices" else 4
    rounds_up = bool(values[ceil_place]) if len(values) > ceil_place else False
    window = _pair(values[1])
    stride = _pair(values[2]) if len(values) > 2 and values[2] else window
    padding = _pair(values[3]) if len(values) > 3 else [0, 0]
    places = 1
    for size, reach, step, pad in zip(shape[-2:], window, stride, padding, strict=True):
        places *= (size + 2 * pad - reach + (step - 1 if rounds_up else 0)) // step + 1
    return int(math.prod(shape[:-2])) * places


def _adapted(key: OperatorKey) -> int:
    return int(math.prod(_first(key)["shape"][:-2])) * int(math.prod(key.arguments[1])) * _item(key)


def _like_second(key: OperatorKey) -> int:
    """Return the bytes of the second tensor. In a backward, that is the input. Its gradient has the same shape."""
    return dense_bytes(list(key.tensors())[1])


def _taken(key: OperatorKey) -> int:
    """Return the bytes of one row of the first tensor per index."""
    rows = max(int(math.prod(tensor["shape"])) for tensor in tensors_in(key.arguments[1]))
    table = _first(key)
    return rows * dense_bytes(table) // max(int(table["shape"][0]), 1)


def _reduced(key: OperatorKey) -> int:
    shape = _first(key)["shape"]
    axes = key.arguments[1] if len(key.arguments) > 1 and isinstance(key.arguments[1], (list, tuple)) else None
    joined = math.prod(shape[axis] for axis in axes) if axes else math.prod(shape)
    return int(math.prod(shape)) // max(int(joined), 1) * _item(key)


def broadcast_elements(tensors: Sequence[Tensor]) -> int:
    """Return the number of elements after broadcasting tensors."""
    sizes: list[int] = []
    for tensor in tensors:
        shape = list(tensor["shape"])
        count = max(len(sizes), len(shape))
        padded = [[1] * (count - len(some)) + some for some in (sizes, shape)]
        sizes = [right if left == 1 else left for left, right in zip(*padded, strict=True)]
    return int(math.prod(sizes))


def _elementwise(key: OperatorKey) -> int:
    tensors = list(key.tensors())
    elements = broadcast_elements(tensors)
    if key.name in _COMPARISONS:
        return elements
    item_bytes = _item(key) if key.name.endswith("_") else _promoted_bytes(tensors)
    return elements * (item_bytes + int(key.name == "native_dropout"))


def _promoted_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes per element after type promotion: floats before integers; scalars do not count."""
    counting = [tensor for tensor in tensors if tensor["shape"]] or tensors
    floats = [tensor for tensor in counting if "float" in tensor["dtype"]] or counting
    return max(ITEM_BYTES[tensor["dtype"]] for tensor in floats)


_WRITTEN: dict[str, Callable[[OperatorKey], int]] = {
    **dict.fromkeys(("new_zeros", "new_ones", "new_full"), _of_shape(1)),
    **dict.fromkeys(("zeros", "ones", "full"), _of_shape(0)),
    "randint": _of_shape(2),
    "arange": lambda key: int(key.arguments[-1]) * _INDEX_BYTES,
    **dict.fromkeys(("cat", "stack"), _joined),
    "_to_copy": _converted,
    "constant_pad_nd": _padded,
    "max_pool2d_with_indices": lambda key: pooled_places(key) * (_item(key) + _INDEX_BYTES),
    "avg_pool2d": lambda key: pooled_places(key) * _item(key),
    "_adaptive_avg_pool2d": _adapted,
    **dict.fromkeys(
        ("max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward"), _like_second
    ),
    **dict.fromkeys(("index", "index_select"), _taken),
    **dict.fromkeys(("fill_", "zero_", "copy_", "clone", "contiguous"), lambda key: dense_bytes(_first(key))),
    **dict.fromkeys(("sum", "mean", "amax", "amin"), _reduced),
}
"""Operator -> formula for the bytes of its result."""
_WRITTEN_BY_FAMILY: dict[str, Callable[[OperatorKey], int]] = {
    "elementwise": _elementwise,
    "reduction": lambda _key: 0,
}
