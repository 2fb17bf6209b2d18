"""FLOPs, bytes and shapes of an operator, computed from its key alone, so that no GPU is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuledger.analyze.operator_work.traffic import broadcast_elements, launches_of, read_bytes, written_bytes
from gpuledger.operator_key import OperatorKey, is_tensor, tensor_bytes, tensors_in

FAMILIES = (
    "matmul", "convolution", "convolution_backward", "attention", "normalization", "softmax", "pooling", "reduction",
    "embedding", "optimizer", "copy", "elementwise", "other",
)  # fmt: skip
"""Kinds of operators that behave alike; the order is part of a fitted model."""

_FAMILY_OF = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "addbmm", "_scaled_mm"), "matmul"),
    **dict.fromkeys(("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution"), "convolution"),
    "convolution_backward": "convolution_backward",
    **dict.fromkeys(("embedding", "embedding_dense_backward", "gather", "scatter_add", "index_add"), "embedding"),
    **dict.fromkeys(("index", "index_select", "index_put", "index_put_", "scatter", "embedding_bag"), "embedding"),
    **dict.fromkeys(
        ("copy_", "clone", "_to_copy", "cat", "stack", "contiguous", "roll", "fill_", "zeros_like"), "copy"
    ),
    **dict.fromkeys(("constant_pad_nd", "repeat", "zero_", "ones_like", "full_like", "flip"), "copy"),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "zeros", "ones", "full", "arange"), "copy"),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "var_mean", "var"), "reduction"),
    **dict.fromkeys(("nll_loss_forward", "nll_loss_backward", "cumsum", "norm", "linalg_vector_norm"), "reduction"),
}
_FAMILY_WORDS = (
    ("attention", "attention"), ("norm", "normalization"), ("softmax", "softmax"), ("pool", "pooling"),
    ("upsample", "pooling"), ("fused_adam", "optimizer"), ("fused_sgd", "optimizer"), ("_foreach_", "optimizer"),
)  # fmt: skip
_ELEMENTWISE_NAMES = """
    add sub mul div neg abs relu gelu silu sigmoid tanh hardswish hardsigmoid hardtanh exp log sqrt rsqrt pow maximum
    minimum where clamp threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward addcmul addcdiv
    hardswish_backward hardsigmoid_backward hardtanh_backward native_dropout native_dropout_backward masked_fill eq ne
    lt gt le ge bitwise_and bitwise_not logical_not bernoulli dropout sin cos reciprocal leaky_relu mish lerp celu elu
    softplus square round floor ceil erf isinf isnan fmod remainder
"""
_ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())


@dataclass(frozen=True)
class Gemm:
    """The matrix product that an operator is equivalent to: ``batch`` products of m×k by k×n."""

    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class CallWork:
    """Work of one call. ``bytes`` are read and written once each, ``launches`` is the approximate number of kernels."""

    family: str
    flops: int
    read_bytes: int
    written_bytes: int
    gemm: Gemm | None = None
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    launches: int = 1

    @property
    def bytes(self) -> int:
        """Return the minimum number of bytes read and written."""
        return self.read_bytes + self.written_bytes


_OTHER_ARGUMENTS = (KeyError, IndexError, TypeError, ValueError, ArithmeticError)
"""Errors that formulas raise for arguments that do not match the known schema. Keys come from files."""


def family_of(key: OperatorKey) -> str:
    """Return the one of :data:`FAMILIES` that an operator belongs to."""
    name = key.name
    known = _FAMILY_OF.get(name)
    if known is not None:
        return known
    for word, family in _FAMILY_WORDS:
        if word in name:
            return family
    return "elementwise" if name.rstrip("_") in _ELEMENTWISE else "other"


def work_of(key: OperatorKey) -> CallWork:
    """Return the FLOPs (a multiply-add is two) and bytes of one call.

    Source: formulas of the shapes; FLOPs are equal to those of torch.utils.flop_counter if it knows the operator.
    """
    family = family_of(key)
    return replace(_by_formula(key, family) or _by_elements(key, family), launches=launches_of(key))


def _by_formula(key: OperatorKey, family: str) -> CallWork | None:
    """Return the work by the family's formula; None if there is no formula, or it does not apply to the arguments."""
    formula = _FORMULAS.get(family)
    try:
        return None if formula is None else formula(key)
    except _OTHER_ARGUMENTS:
        return None


def known_work_of(key: OperatorKey) -> CallWork | None:
    """Return the work of one call; None if no formula is known for its operator or its arguments."""
    family = family_of(key)
    try:
        return None if family == "other" or (family in _FORMULAS and not _by_formula(key, family)) else work_of(key)
    except _OTHER_ARGUMENTS:
        return None


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value["shape"]) if is_tensor(value) else None


def _item_bytes(value: Mapping[str, Any]) -> int:
    count = math.prod(value["shape"])
    dense = {"shape": value["shape"], "dtype": value["dtype"]}
    return tensor_bytes(dense) // count if count else 0


def _by_elements(key: OperatorKey, family: str) -> CallWork:
    """Return the work of an operator that is not a product: one FLOP per element, none if it only copies."""
    tensors = [tensor for tensor in key.tensors() if "same" not in tensor]
    elements = max((math.prod(tensor["shape"]) for tensor in tensors), default=0)
    if family == "optimizer":
        lists = [list(tensors_in(value)) for value in key.arguments if isinstance(value, (list, tuple))]
        elements = sum(math.prod(tensor["shape"]) for tensor in tensors)
        largest = max((tensor_bytes(tensor) for tensor in tensors), default=0)
        written = sum(tensor_bytes(tensor) for tensor in lists[0]) if lists else largest
        return CallWork(family, elements, read_bytes(key), written)
    if family == "embedding" and key.name not in ("index", "index_select"):
        return _lookup(key, tensors)
    if family == "elementwise":
        elements = broadcast_elements(tensors)
    return CallWork(family, 0 if family == "copy" else elements, read_bytes(key), written_bytes(key, family))


def _lookup(key: OperatorKey, tensors: Sequence[Mapping[str, Any]]) -> CallWork:
    """Return the work of a lookup, which reads one row of the first tensor per index.

    The gradient also reads one row per index, and writes a whole table of zeros and sums.
    """
    if key.name == "embedding_dense_backward" and len(key.arguments) > 2 and is_tensor(key.arguments[0]):
        gradient = key.arguments[0]
        table_bytes = key.arguments[2] * gradient["shape"][-1] * _item_bytes(gradient)
        return CallWork("embedding", 0, sum(tensor_bytes(tensor) for tensor in tensors), table_bytes)
    indices = [tensor for tensor in tensors if tensor["dtype"] in ("int64", "int32")]
    rows = max((math.prod(tensor["shape"]) for tensor in indices), default=1)
    table = next((tensor for tensor in tensors if tensor not in indices), None)
    if table is None or not table["shape"]:
        return CallWork("embedding", 0, read_bytes(key), 0)
    width = tensor_bytes(table) // max(table["shape"][0], 1)
    moved = min(rows * width, max(tensor_bytes(table), rows * width))
    return CallWork("embedding", 0, moved + sum(tensor_bytes(tensor) for tensor in indices), moved)


def _matmul(key: OperatorKey) -> CallWork | None:
    shapes = [(value, _shape(value)) for value in key.arguments if is_tensor(value)]
    matrices = [(value, shape) for value, shape in shapes if shape is not None and len(shape) >= 2][-2:]
    if key.name in ("mm", "bmm", "addmm", "baddbmm", "addbmm") and len(matrices) < 2:
        return None
    if len(matrices) < 2:
        return None
    (left, a), (_, b) = matrices
    if key.name == "linear":
        left, a, b = shapes[0][0], shapes[0][1] or (), tuple(reversed(shapes[1][1] or ()))
        gemm = Gemm(1, math.prod(a[:-1]), b[-1], a[-1]) if len(b) == 2 and a else None
    else:
        gemm = Gemm(math.prod(a[:-2]), a[-2], b[-1], a[-1])
    if gemm is None:
        return None
    flops = 2 * gemm.batch * gemm.m * gemm.n * gemm.k
    return CallWork("matmul", flops, read_bytes(key), gemm.batch * gemm.m * gemm.n * _item_bytes(left), gemm)


@dataclass(frozen=True)
class Convolution:
    """A convolution's arguments, at their positions in ATen's schema."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    out: tuple[int, ...]
    stride: int
    groups: int
    is_transposed: bool
    padding: int

    @property
    def flops(self) -> int:
        """Return the FLOPs of the forward pass, as torch.utils.flop_counter counts them."""
        spatial = self.x[2:] if self.is_transposed else self.out[2:]
        return 2 * self.x[0] * math.prod(spatial) * math.prod(self.w)

    @property
    def gemm(self) -> Gemm:
        """Return the implicit product: output positions by output channels by window."""
        places = self.x[0] * math.prod(self.out[2:])
        return Gemm(self.groups, places, max(self.out[1] // self.groups, 1), math.prod(self.w[1:]))


def _read_convolution(arguments: Sequence[Any]) -> Convolution | None:
    """Return a convolution from ATen's nine arguments: input, weight, bias, stride, padding, dilation, …, groups."""
    if len(arguments) < 9 or not (is_tensor(arguments[0]) and is_tensor(arguments[1])):
        return None
    x, w = tuple(arguments[0]["shape"]), tuple(arguments[1]["shape"])
    stride, padding, dilation = (_spread(arguments[place], len(x) - 2) for place in (3, 4, 5))
    transposed, extra, groups = bool(arguments[6]), _spread(arguments[7], len(x) - 2), int(arguments[8])
    spatial = []
    for axis, size in enumerate(x[2:]):
        reach = dilation[axis] * (w[2 + axis] - 1)
        if transposed:
            spatial.append((size - 1) * stride[axis] - 2 * padding[axis] + reach + extra[axis] + 1)
        else:
            spatial.append((size + 2 * padding[axis] - reach - 1) // stride[axis] + 1)
    channels = w[1] * groups if transposed else w[0]
    return Convolution(
        x, w, (x[0], channels, *spatial), max(stride, default=1), groups, transposed, max(padding, default=0)
    )


def convolution_of(key: OperatorKey) -> Convolution | None:
    """Return the convolution that an operator computes, or computes the gradient of; None for other operators."""
    values = key.arguments
    try:
        if key.name == "convolution_backward":
            return _read_convolution((values[1], values[2], None, *values[4:10])) if len(values) > 10 else None
        return _read_convolution(values) if family_of(key) == "convolution" else None
    except _OTHER_ARGUMENTS:
        return None


def _spread(value: Any, count: int) -> list[int]:
    values = [int(one) for one in value] if isinstance(value, (list, tuple)) else [int(value)]
    return values * count if len(values) == 1 else values


def _convolution(key: OperatorKey) -> CallWork | None:
    found = convolution_of(key)
    if found is None:
        return None
    written = math.prod(found.out) * _item_bytes(key.arguments[0])
    window = math.prod(found.w[2:])
    return CallWork(
        "convolution", found.flops, read_bytes(key), written, found.gemm, window, found.stride, found.groups
    )


def _convolution_backward(key: OperatorKey) -> CallWork | None:
    """Return the work of the gradients that the output mask selects: of the input and of the weight."""
    values = key.arguments
    found = convolution_of(key)
    if found is None:
        return None
    mask = values[10]
    gradients = sum(bool(wanted) for wanted in mask[:2])
    written = (math.prod(found.x) if mask[0] else 0) + (math.prod(found.w) if mask[1] else 0)
    return CallWork(
        "convolution_backward", gradients * found.flops, read_bytes(key), written * _item_bytes(values[1]),
        found.gemm, math.prod(found.w[2:]), found.stride, found.groups,
    )  # fmt: skip


def _attention(key: OperatorKey) -> CallWork | None:
    """Return the work of attention: two products forward, five backward."""
    if key.name == "_native_multi_head_attention":
        return _layer_of_attention(key)
    shapes = [tuple(value["shape"]) for value in key.arguments if is_tensor(value) and len(value["shape"]) == 4]
    is_backward = "backward" in key.name
    if len(shapes) < (4 if is_backward else 3):
        return None
    q, k, v = shapes[1:4] if is_backward else shapes[:3]
    batch, heads, queries, width = q
    keys, out_width = k[-2], v[-1]
    first, second = 2 * batch * heads * queries * keys * width, 2 * batch * heads * queries * keys * out_width
    gemm = Gemm(batch * heads, queries, keys, width)
    item = _item_bytes(next(value for value in key.arguments if is_tensor(value)))
    if is_backward:
        written = (math.prod(q) + math.prod(k) + math.prod(v)) * item
        return CallWork("attention", 3 * first + 2 * second, read_bytes(key), written, gemm)
    return CallWork("attention", first + second, read_bytes(key), batch * heads * queries * out_width * item, gemm)


def _layer_of_attention(key: OperatorKey) -> CallWork:
    """Return the work of a layer of attention in evaluation, which is one operator: projections and two products."""
    query, keys, width = key.arguments[0], key.arguments[1]["shape"][1], int(key.arguments[3])
    batch, queries = query["shape"][:2]
    projected = 2 * width * width * batch * (2 * queries + 2 * keys)
    flops = projected + 4 * batch * queries * keys * width
    written = batch * queries * width * _item_bytes(query)
    return CallWork("attention", flops, read_bytes(key), written, Gemm(1, batch * queries, 3 * width, width))


_FORMULAS: dict[str, Callable[[OperatorKey], CallWork | None]] = {
    "matmul": _matmul,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "attention": _attention,
}
