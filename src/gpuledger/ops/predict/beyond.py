"""Extrapolate to operators larger than all examples: the larger one is, the closer to the best example of its kind.

In a large operator, launches are hidden and tiles and waves are full. Its remaining distance to the roofline is that of
the best of the largest examples. Applies only to kinds of operators with a law (:mod:`.law`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger.ops.predict.features import Floats
from gpuledger.ops.predict.law import LEAST_EXAMPLES, Operation, kind_of
from gpuledger.ops.predict.roof import Roof

BEST_FRAC = 0.1
"""Quantile of the larger half of a kind's examples that counts as the best."""
HALF_WAY = 4.0
"""Doublings of size beyond the largest example for half of the distance to the best."""


@dataclass(frozen=True)
class Best:
    """The best of one kind: log2 of its time over its law, and the roofline time of the kind's largest example."""

    share: float
    largest_ns: float


def best_of(operations: Sequence[Operation], target: Floats, roof: Roof) -> dict[str, Best]:
    """Return the best of each kind with enough examples.

    Args:
        operations: The examples.
        target: log2 of each example's time over its law, float64[n].
        roof: The GPU's roofline.
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
    """Return the decrease of each operator's predicted log2 time, float64[n]; 0 within the range.

    Args:
        operations: The operators.
        middle: Predicted log2 of each operator's time over its law, float64[n].
        best: The best of each kind.
        roof: Roofline of the GPU of ``best``.
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
