"""Additive roofline for products and convolutions: the sum of parts, each with a factor fitted to the database.

A usual roofline is the time of the slowest part only. But a convolution in TF32 converts its data, multiplies, and
converts the result back, one after the other. A sum of parts extrapolates better from small operators to large ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuledger.analyze.operator_work.formulas import CallWork, convolution_of
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.predict.fitting import no_scikit_learn
from gpuledger.ops.predict.roof import FLOOR_NS, Roof, uses_cores
from gpuledger.ops.predict.workspaces import Held

Floats = npt.NDArray[np.float64]
LARGE, SMALL = 128, 64
MOST_IDLE = 8.0
"""Upper limit of the factor for partly filled tiles, because libraries split small products."""
LEAST_EXAMPLES = 40
"""Least examples of one kind for a fit. With fewer, the roofline is used."""
ROUNDS = 12
"""Rounds of reweighting, which reduce the influence of outliers."""
DENSE, GROUPS, NARROW = "dense", "groups", "narrow groups"
WIDE = 16
"""Input channels of a group from which cuDNN multiplies it with tensor cores. Below, as in depthwise convolutions, it
takes ten times as long for each FLOP."""
Laws = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Operation:
    """One operator: its call, its work and its workspaces."""

    key: OperatorKey
    work: CallWork
    held: Held


def kind_of(operation: Operation) -> str:
    """Return the kind of law of an operator; "" if it is the roofline."""
    if operation.work.family == "matmul":
        return f"matmul, {'tensor cores' if uses_cores(operation.key) else 'common cores'}"
    if operation.work.family not in ("convolution", "convolution_backward"):
        return ""
    return f"{operation.work.family}, {_groups_of(operation)}"


def _groups_of(operation: Operation) -> str:
    """Return which kernels a convolution uses: those of a matrix product only if its groups are wide enough."""
    found = convolution_of(operation.key)
    if operation.work.groups <= 1 or found is None:
        return DENSE
    return NARROW if found.w[1] < WIDE else GROUPS


def times_ns(operations: Sequence[Operation], roof: Roof, laws: Laws) -> Floats:
    """Return the times of operators by their laws, float64[n] in ns; by the roofline if no law was fitted."""
    return np.array(
        [_time_ns(operation, roof, _law_of(kind_of(operation), laws)) for operation in operations], dtype=np.float64
    )


def _law_of(kind: str, laws: Laws) -> tuple[float, ...] | None:
    """Return the law of a kind; for wide groups without one, that of a convolution without groups."""
    return laws.get(kind) or laws.get(kind.replace(GROUPS, DENSE))


def _time_ns(operation: Operation, roof: Roof, law: tuple[float, ...] | None) -> float:
    if law is None:
        return roof.time_ns(operation.key, operation.work)
    return max(float(np.dot(law, _parts(operation, roof))), FLOOR_NS)


def _parts(operation: Operation, roof: Roof) -> tuple[float, ...]:
    """Return the least time of each part, in ns.

    The parts of a product are its launches and its roofline time. Those of a convolution are its launches, its FLOPs,
    the FLOPs of full tiles and waves, the bytes that it reads and writes, and the bytes of its workspaces.
    """
    work, launches_ns = operation.work, FLOOR_NS * operation.work.launches
    if work.family == "matmul":
        return launches_ns, roof.time_ns(operation.key, work) - launches_ns
    compute_ns = work.flops / roof.peak(operation.key)
    return (
        launches_ns,
        compute_ns,
        compute_ns * _idle(work, LARGE, roof),
        compute_ns * _idle(work, SMALL, roof),
        work.bytes / roof.byte_per_ns,
        sum(operation.held) / roof.byte_per_ns,
    )


def _idle(work: CallWork, tile: int, roof: Roof) -> float:
    """Return the factor on the FLOPs if all tiles and waves are computed in full."""
    gemm, processors = work.gemm, max(roof.multiprocessors, 1)
    if gemm is None or not gemm.m * gemm.n * gemm.batch:
        return 1.0
    tiles = gemm.batch * math.ceil(gemm.m / tile) * math.ceil(gemm.n / tile)
    filled = math.ceil(tiles / processors) * processors * tile * tile
    return min(filled / (gemm.batch * gemm.m * gemm.n), MOST_IDLE)


def learn_laws(operations: Sequence[Operation], took_ns: Floats, roof: Roof) -> dict[str, tuple[float, ...]]:
    """Return the law of each kind with enough examples: a factor for each part.

    Raises:
        UsageError: SciPy, which comes with scikit-learn, is not installed.
    """
    kinds = np.array([kind_of(operation) for operation in operations], dtype=np.str_)
    found = {}
    for kind in sorted(set(kinds.tolist()) - {""}):
        places = np.flatnonzero(kinds == kind).tolist()
        if len(places) >= LEAST_EXAMPLES:
            parts = np.array([_parts(operations[place], roof) for place in places], dtype=np.float64)
            found[kind] = _learn(parts, took_ns[places])
    return found


def _learn(parts: Floats, took_ns: Floats) -> tuple[float, ...]:
    """Return the non-negative factors with the least relative error."""
    try:
        from scipy.optimize import nnls
    except ImportError as error:
        raise no_scikit_learn() from error
    weights, factors = 1 / took_ns, np.zeros(parts.shape[1])
    for _ in range(ROUNDS):
        factors, _residual = nnls(parts * weights[:, None], took_ns * weights)
        said_ns = np.maximum(parts @ factors, FLOOR_NS)
        weights = 1 / np.sqrt(took_ns * said_ns * (1 + 2 * np.abs(np.log2(said_ns / took_ns))))
    return tuple(float(factor) for factor in factors)
