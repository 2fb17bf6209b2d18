"""What operators beyond the range come to: the larger one is, the nearer to the best that was seen of its kind.

A large operator hides its launches and fills its tiles and waves; what it does not reach of the roof then is what the
best of the largest examples do not reach either. Only the kinds of operators that follow a law are told so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger.ops.predict.features import Floats
from gpuledger.ops.predict.law import LEAST_EXAMPLES, Operation, kind_of
from gpuledger.ops.predict.roof import Roof

BEST_FRAC = 0.1
"""The share of the larger half of a kind's examples that are at least as near to their law as the best is told."""
HALF_WAY = 4.0
"""Doublings beyond the largest example in which half of the way to the best is gone."""


@dataclass(frozen=True)
class Best:
    """The best of one kind: log2 of how many times its law it takes, and what the kind's largest needs at least."""

    share: float
    largest_ns: float


def best_of(operations: Sequence[Operation], target: Floats, roof: Roof) -> dict[str, Best]:
    """Return the best of each kind of which there are enough examples.

    Args:
        operations: The examples.
        target: log2 of how many times its law each takes, float64[n].
        roof: The GPU's.
    """
    kinds = np.array([kind_of(operation) for operation in operations], dtype=np.str_)
    least_ns = _least_ns(operations, roof)
    found = {}
    for kind in sorted(set(kinds.tolist()) - {""}):
        places = np.flatnonzero(kinds == kind)
        if len(places) >= LEAST_EXAMPLES:
            larger = places[np.argsort(least_ns[places])[len(places) // 2 :]]
            found[kind] = Best(float(np.quantile(target[larger], BEST_FRAC)), float(least_ns[places].max()))
    return found


def drawn_to_best(operations: Sequence[Operation], middle: Floats, best: Mapping[str, Best], roof: Roof) -> Floats:
    """Return by how much less log2 each operator takes than is told of it, float64[n]: 0 within the range.

    Args:
        operations: The operators.
        middle: log2 of how many times its law each was told to take, float64[n].
        best: Of each kind.
        roof: That of the GPU which ``best`` was learned on.
    """
    none = Best(0.0, float("inf"))
    known = [best.get(kind_of(operation), none) for operation in operations]
    times_beyond = np.maximum(_least_ns(operations, roof) / np.array([one.largest_ns for one in known]), 1.0)
    way = 1 - np.exp2(-np.log2(times_beyond) / HALF_WAY)
    return np.asarray(np.minimum(np.array([one.share for one in known]) - middle, 0.0) * way)


def _least_ns(operations: Sequence[Operation], roof: Roof) -> Floats:
    return np.array(
        [max(roof.least_ns(operation.key, operation.work), 1.0) for operation in operations], dtype=np.float64
    )
