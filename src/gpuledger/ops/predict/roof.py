"""What a GPU can do at most: the roofline that times and powers are divided by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.operator_work.formulas import Work
from gpuledger.operator_key import OperatorKey

if TYPE_CHECKING:
    from gpuledger.simulate.catalogue import Card

TILE, THIN = 64, 16
"""Rows and columns of a tile that one multiprocessor takes, and those of a product with hardly any."""
SPLIT = 4_096
"""A part of a sum that is split has so many terms at least."""
FLOOR_NS = 1_500.0
"""What a kernel takes that does nothing."""
CHANNELS_AT_ONCE, ROW_NS = 2, 200.0
"""Channels of a batch norm in training that a multiprocessor takes at once; what a row of a layer norm takes it."""
_FALLBACKS = {"bfloat16": ("float16", "float32"), "float16": ("bfloat16", "float32"), "tf32": ("float32",)}
_CORES = ("float16", "bfloat16", "tf32", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Roof:
    """A GPU's figures. ``flop_per_ns`` by dtype, ``tf32`` among them; ``source`` is ``datasheet`` or ``database``."""

    card: str
    flop_per_ns: Mapping[str, float]
    byte_per_ns: float
    multiprocessors: int
    power_limit_w: float | None
    cache_bytes: int | None
    source: str

    def peak(self, key: OperatorKey) -> float:
        """Return the FLOP/ns of an operator's dtype; of the nearest one where the GPU has no figure for it."""
        wanted = compute_type(key)
        for name in (wanted, *_FALLBACKS.get(wanted, ()), "float32"):
            if name in self.flop_per_ns:
                return self.flop_per_ns[name]
        return max(self.flop_per_ns.values(), default=1.0)

    def least_ns(self, key: OperatorKey, work: Work) -> float:
        """Return what FLOPs or bytes take at least, whichever takes longer."""
        return max(work.flops / self.peak(key), work.bytes / self.byte_per_ns)

    def time_ns(self, key: OperatorKey, work: Work) -> float:
        """Return what one call takes at least, with its launches, and with tiles and waves that are not full."""
        return (
            max(self.least_ns(key, work), self._waves_ns(key, work), self._norm_ns(key, work))
            + FLOOR_NS * work.launches
        )

    def _norm_ns(self, key: OperatorKey, work: Work) -> float:
        """Return what a norm takes whose blocks each take one mean: a channel's, or a row's; 0 for what is none."""
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

    def _waves_ns(self, key: OperatorKey, work: Work) -> float:
        """Return what the waves of a matrix product's tiles take; 0 for what is none.

        Where a wave is not full a long sum is split over it. A convolution is none here: its library splits it in ways
        of its own.
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


def roof_of_card(card: Card) -> Roof:
    """Return the roof of a GPU of the catalogue.

    Source: the datasheet's figures.
    """
    return Roof(
        card.name,
        {name: tflop_s * 1e3 for name, tflop_s in card.peak_tflop_s.items()},
        float(card.bandwidth_gb_s.value),
        card.multiprocessors,
        float(card.power_limit_w),
        card.l2_mib << 20,
        "datasheet",
    )


def compute_type(key: OperatorKey) -> str:
    """Return the dtype an operator computes in: its first floating tensor's, or ``tf32`` where that is allowed."""
    names = [str(tensor["dtype"]) for tensor in key.tensors()]
    first = next((name for name in names if "float" in name), names[0] if names else "float32")
    return "tf32" if first == "float32" and key.flags.get("tf32") else first


def uses_cores(key: OperatorKey) -> bool:
    """Return whether tensor cores take an operator's dtype."""
    return compute_type(key) in _CORES


def roof_of_measurements(card: str, measured: Iterable[tuple[OperatorKey, Work, float]]) -> Roof:
    """Return what a GPU was seen to do at most, where the catalogue does not have it.

    Args:
        card: Its name.
        measured: Operators with their work and the nanoseconds of one call.
    """
    peaks: dict[str, float] = {}
    byte_per_ns = 0.0
    for key, work, time_ns in measured:
        if work.flops and work.gemm is not None:
            name = compute_type(key)
            peaks[name] = max(peaks.get(name, 0.0), work.flops / time_ns)
        byte_per_ns = max(byte_per_ns, work.bytes / time_ns)
    return Roof(card, peaks or {"float32": 1.0}, byte_per_ns or 1.0, 1, None, None, "database")
