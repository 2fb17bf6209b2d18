"""Values for an operator's inputs like those of a model: indices in range, probabilities, variances.

Floating-point inputs are not zeros, because multiplying zeros needs less power and runs faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpuledger.operator_key import OperatorKey, is_tensor, tensors_in

Kind = Literal[
    "normal", "positive", "share", "range", "softmax", "log_softmax", "sorted", "offsets", "counts", "matrix"
]
Named = Mapping[str, Any]
"""The arguments of a call by the names of the operator's schema."""


@dataclass(frozen=True)
class InputValues:
    """How to generate one input.

    Attributes:
        kind: ``share`` is between 0 and 1, ``offsets`` rise from 0 to ``high``, ``counts`` add up to ``high``,
            ``matrix`` is symmetric and positive definite.
        low: For ``range``: smallest integer.
        high: For ``range``: upper end, exclusive.
        dim: For softmax: the dimension with the sum 1.
    """

    kind: Kind = "normal"
    low: int = 0
    high: int = 4
    dim: int = -1


POSITIVE = frozenset(
    {"running_var", "save_var", "save_invstd", "rstd", "invstd", "std", "exp_avg_sqs", "max_exp_avg_sqs"}
    | {"state_steps", "found_inf", "inv_scale", "scale", "scale_a", "scale_b", "growth_tracker", "denom"}
)
"""Arguments that are variances, deviations, counts or scales, whatever the operator."""

_ROOTS = ("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "reciprocal", "pow", "digamma", "lgamma")
_DIVISIONS = ("div", "remainder", "fmod", "floor_divide", "true_divide")


def values_of(key: OperatorKey, argument: str, place: int | None, named: Named) -> InputValues:
    """Return how to generate an input.

    Args:
        key: The call.
        argument: The argument's name in the schema.
        place: Index in the argument's list; None if the argument is one tensor.
        named: All arguments.
    """
    name = _plain(key.name)
    rule = _RULES.get((name, argument)) or _FAMILIES.get((_family(name), argument))
    if rule is not None:
        return rule(named, place)
    if argument in POSITIVE or (name in _ROOTS and argument in ("self", "exponent")):
        return InputValues("positive")
    if name in _DIVISIONS and argument == "other":
        return InputValues("positive", 1, 8)
    if argument.startswith(("cum_seq", "cu_seqlens")):
        return InputValues("offsets", high=_shape(named["query"])[0])
    if "ind" in argument:
        return InputValues("range", 0, max(min(_shape_of_first(named), default=1), 1))
    return InputValues()


def _plain(name: str) -> str:
    """Return an operator's name without markers for in-place and list variants."""
    return name.removeprefix("_foreach_").removesuffix("_")


def _family(name: str) -> str:
    for family in ("scatter", "index_", "nll_loss", "max_pool", "cholesky", "linalg_cholesky"):
        if name.startswith(family):
            return family
    return ""


def _shape(tensor: Any) -> list[int]:
    return list(tensor["shape"])


def _shape_of_first(named: Named) -> list[int]:
    return next((_shape(tensor) for tensor in tensors_in(list(named.values()))), [])


def _rows(name: str) -> Callable[[Named, int | None], InputValues]:
    return lambda named, _: InputValues("range", 0, _shape(named[name])[0])


def _along_dim(named: Named, _: int | None) -> InputValues:
    shape = _shape(named["self"])
    return InputValues("range", 0, shape[int(named["dim"])] if shape else 1)


def _all_elements(named: Named, _: int | None) -> InputValues:
    return InputValues("range", 0, math.prod(_shape(named["self"])))


def _dimension(argument: str) -> Callable[[Named, int | None], InputValues]:
    """The n-th index of a list picks along the n-th dimension; a mask before it takes as many as it has."""

    def rule(named: Named, place: int | None) -> InputValues:
        before = named["indices"][: place or 0]
        dimension = sum(len(_shape(index)) if _is_mask(index) else 1 for index in before)
        return InputValues("range", 0, _shape(named[argument])[dimension])

    return rule


def _is_mask(index: Any) -> bool:
    return is_tensor(index) and index["dtype"] in ("bool", "uint8")


def _classes(named: Named, _: int | None) -> InputValues:
    shape = _shape(named["self"])
    return InputValues("range", 0, shape[1] if len(shape) > 1 else shape[0])


def _pooled(named: Named, _: int | None) -> InputValues:
    """Indices of a pooling count the elements of one plane, or volume."""
    dimensions = len(named["kernel_size"]) if named.get("kernel_size") else 2
    return InputValues("range", 0, math.prod(_shape(named["self"])[-dimensions:]))


def _always(values: InputValues) -> Callable[[Named, int | None], InputValues]:
    return lambda _named, _place: values


def _softmax(kind: Literal["softmax", "log_softmax"]) -> Callable[[Named, int | None], InputValues]:
    return lambda named, _: InputValues(kind, dim=int(named["dim"]))


def _repeats(named: Named, _: int | None) -> InputValues:
    return InputValues("counts", high=named.get("output_size") or 2 * _shape(named["repeats"])[0])


_SHARE = _always(InputValues("share"))
_POSITIVE = _always(InputValues("positive"))

_RULES: dict[tuple[str, str], Callable[[Named, int | None], InputValues]] = {
    ("embedding", "indices"): _rows("weight"),
    ("embedding_dense_backward", "indices"): lambda named, _: InputValues("range", 0, int(named["num_weights"])),
    ("_embedding_bag", "indices"): _rows("weight"),
    ("_embedding_bag_forward_only", "indices"): _rows("weight"),
    ("_embedding_bag", "offsets"): lambda named, _: InputValues("offsets", high=_shape(named["indices"])[0]),
    ("_embedding_bag_forward_only", "offsets"): lambda named, _: InputValues(
        "offsets", high=_shape(named["indices"])[0]
    ),
    ("index", "indices"): _dimension("self"),
    ("_unsafe_index", "indices"): _dimension("self"),
    ("index_put", "indices"): _dimension("self"),
    ("_index_put_impl", "indices"): _dimension("self"),
    ("_unsafe_index_put", "indices"): _dimension("self"),
    ("index_select", "index"): _along_dim,
    ("gather", "index"): _along_dim,
    ("take", "index"): _all_elements,
    ("put", "index"): _all_elements,
    ("bernoulli", "self"): _SHARE,
    ("bernoulli", "p"): _SHARE,
    ("multinomial", "self"): _SHARE,
    ("binary_cross_entropy", "self"): _SHARE,
    ("binary_cross_entropy", "target"): _SHARE,
    ("binary_cross_entropy_backward", "self"): _SHARE,
    ("binary_cross_entropy_backward", "target"): _SHARE,
    ("binary_cross_entropy_with_logits", "target"): _SHARE,
    ("_softmax_backward_data", "output"): _softmax("softmax"),
    ("_log_softmax_backward_data", "output"): _softmax("log_softmax"),
    ("sigmoid_backward", "output"): _SHARE,
    ("_ctc_loss", "targets"): lambda named, _: InputValues("range", 1, _shape(named["log_probs"])[-1]),
    ("addcdiv", "tensor2"): _POSITIVE,
    ("repeat_interleave", "repeats"): _repeats,
    ("searchsorted", "sorted_sequence"): _always(InputValues("sorted")),
    ("bucketize", "boundaries"): _always(InputValues("sorted")),
}
"""Operator and argument -> its values."""

_FAMILIES: dict[tuple[str, str], Callable[[Named, int | None], InputValues]] = {
    ("scatter", "index"): _along_dim,
    ("index_", "index"): _along_dim,
    ("nll_loss", "target"): _classes,
    ("nll_loss", "total_weight"): _POSITIVE,
    ("nll_loss", "weight"): _POSITIVE,
    ("max_pool", "indices"): _pooled,
    ("cholesky", "self"): _always(InputValues("matrix")),
    ("linalg_cholesky", "self"): _always(InputValues("matrix")),
}
"""The same for operators with a common beginning of the name."""
