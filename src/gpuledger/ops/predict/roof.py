"""The roofline of a GPU, relative to which times and power are modelled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.operator_work.formulas import CallWork
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.predict.sustained import sustained_frac

if TYPE_CHECKING:
    from gpuledger.simulate.catalogue import GpuModel

TILE, THIN = 64, 16
"""Rows and columns of a tile on one multiprocessor, and of a thin product."""
SPLIT = 4_096
"""Least number of terms in each part of a split sum."""
FLOOR_NS = 1_500.0
"""Duration of an empty kernel, in ns."""
CHANNELS_AT_ONCE, ROW_NS = 2, 200.0
"""Channels of a batch norm in training per multiprocessor at once, and time of a layer norm's row in ns."""
_FALLBACKS = {"bfloat16": ("float16", "float32"), "float16": ("bfloat16", "float32"), "tf32": ("float32",)}
_CORES = ("float16", "bfloat16", "tf32", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Roof:
    """A GPU's peak rates. ``flop_per_ns`` by dtype, including ``tf32``; ``source`` is ``datasheet`` or ``database``."""

    card: str
    flop_per_ns: Mapping[str, float]
    byte_per_ns: float
    multiprocessors: int
    power_limit_w: float | None
    cache_bytes: int | None
    source: str

    def peak(self, key: OperatorKey) -> float:
        """Return the peak FLOP/ns of an operator's dtype, or of the closest known one."""
        return self.peak_of(compute_type(key))

    def peak_of(self, wanted: str) -> float:
        """Return the peak FLOP/ns of a dtype, or of the closest known one."""
        for name in (wanted, *_FALLBACKS.get(wanted, ()), "float32"):
            if name in self.flop_per_ns:
                return self.flop_per_ns[name]
        return max(self.flop_per_ns.values(), default=1.0)

    def least_ns(self, key: OperatorKey, work: CallWork) -> float:
        """Return the roofline time in ns: that of the FLOPs or of the bytes, whichever is longer."""
        return max(work.flops / self.peak(key), work.bytes / self.byte_per_ns)

    def time_ns(self, key: OperatorKey, work: CallWork) -> float:
        """Return the least time of one call in ns, with launches and partly filled tiles and waves."""
        return (
            max(self.least_ns(key, work), self._waves_ns(key, work), self._norm_ns(key, work))
            + FLOOR_NS * work.launches
        )

    def _norm_ns(self, key: OperatorKey, work: CallWork) -> float:
        """Return the time in ns of a norm with one block per channel or row; 0 for other operators."""
        is_backward = "backward" in key.name
        if work.family != "normalization" or self.multiprocessors <= 1:
            return 0.0
        first = next(key.tensors(), None)
        if first is None or len(first["shape"]) < 2:
            return 0.0
        if "batch_norm" in key.name:
            is_mean_made = is_backward or (len(key.arguments) > 5 and bool(key.arguments[5]))
            waves = first["shape"][1] / (CHANNELS_AT_ONCE * self.multiprocessors)
            return work.bytes / self.byte_per_ns * math.ceil(waves) / waves if is_mean_made and waves else 0.0
        return 0.0 if is_backward else int(math.prod(first["shape"][:-1])) / self.multiprocessors * ROW_NS

    def _waves_ns(self, key: OperatorKey, work: CallWork) -> float:
        """Return the time in ns of a matrix product by full waves of tiles; 0 for other operators.

        A long sum is split to fill a wave. Convolutions are not included, because libraries split them differently.
        """
        gemm = work.gemm
        if gemm is None or work.family != "matmul":
            return 0.0
        m, n = (TILE if size > THIN else THIN for size in (gemm.m, gemm.n))
        tiles = gemm.batch * math.ceil(gemm.m / m) * math.ceil(gemm.n / n)
        processors = max(self.multiprocessors, 1)
        parts = max(min(processors // tiles, gemm.k // SPLIT), 1) if tiles else 1
        waves = math.ceil(tiles * parts / processors)
        return waves * 2 * m * n * gemm.k / parts * processors / self.peak(key)


def roof_of_card(card: GpuModel) -> Roof:
    """Return the roofline of a GPU in the catalogue. Its float32 rate is the sustained one.

    Source: its data sheet, and :mod:`.sustained`.
    """
    rates = {name: tflop_s * 1e3 for name, tflop_s in card.peak_tflop_s.items()}
    if "float32" in rates:
        rates["float32"] *= sustained_frac(card)
    return Roof(
        card.name,
        rates,
        float(card.bandwidth_gb_s.value),
        card.multiprocessors,
        float(card.power_limit_w),
        card.l2_mib << 20,
        "datasheet",
    )


def compute_type(key: OperatorKey) -> str:
    """Return the dtype of an operator's computation: that of its first float tensor, or ``tf32`` if allowed."""
    names = [str(tensor["dtype"]) for tensor in key.tensors()]
    first = next((name for name in names if "float" in name), names[0] if names else "float32")
    return "tf32" if first == "float32" and key.flags.get("tf32") else first


def uses_cores(key: OperatorKey) -> bool:
    """Return whether tensor cores support an operator's dtype."""
    return compute_type(key) in _CORES


def roof_of_measurements(card: str, measured: Iterable[tuple[OperatorKey, CallWork, float]]) -> Roof:
    """Return a roofline from the best measured rates, for a GPU that is not in the catalogue.

    Args:
        card: Name of the GPU.
        measured: Operators with their work and the time of one call in ns.
    """
    peaks: dict[str, float] = {}
    byte_per_ns = 0.0
    for key, work, time_ns in measured:
        if work.flops and work.gemm is not None:
            name = compute_type(key)
            peaks[name] = max(peaks.get(name, 0.0), work.flops / time_ns)
        byte_per_ns = max(byte_per_ns, work.bytes / time_ns)
    return Roof(card, peaks or {"float32": 1.0}, byte_per_ns or 1.0, 1, None, None, "database")
