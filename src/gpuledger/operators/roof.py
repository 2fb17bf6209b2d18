"""What a card can do at most: the roofline that times and powers are divided by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.operators.formulas import Work
from gpuledger.operators.key import OperatorKey

if TYPE_CHECKING:
    from gpuledger.virtual.cards import Card

TILE, THIN = 64, 16
"""Rows and columns of a tile that one multiprocessor takes, and those of a product with hardly any."""
FLOOR_NS = 1_500.0
"""What a kernel takes that does nothing."""
_FALLBACKS = {"bfloat16": ("float16", "float32"), "float16": ("bfloat16", "float32"), "tf32": ("float32",)}
_CORES = ("float16", "bfloat16", "tf32", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Roof:
    """A card's figures. ``flop_per_ns`` by dtype, ``tf32`` among them; ``source`` is ``datasheet`` or ``book``."""

    card: str
    flop_per_ns: Mapping[str, float]
    byte_per_ns: float
    multiprocessors: int
    power_limit_w: float | None
    cache_bytes: int | None
    source: str

    def peak(self, key: OperatorKey) -> float:
        """Return the FLOP/ns of an operator's dtype; of the nearest one where the card has no figure for it."""
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
        return max(self.least_ns(key, work), self._waves_ns(key, work)) + FLOOR_NS * work.launches

    def _waves_ns(self, key: OperatorKey, work: Work) -> float:
        """Return what the waves of a matrix product's tiles take; 0 for what is none.

        A convolution is none here: its library splits it in ways of its own.
        """
        gemm = work.gemm
        if gemm is None or work.family != "matmul":
            return 0.0
        m, n = (TILE if size > THIN else THIN for size in (gemm.m, gemm.n))
        tiles = gemm.batch * math.ceil(gemm.m / m) * math.ceil(gemm.n / n)
        waves = math.ceil(tiles / max(self.multiprocessors, 1))
        return waves * 2 * m * n * gemm.k * max(self.multiprocessors, 1) / self.peak(key)


def roof_of_card(card: Card) -> Roof:
    """Return the roof of a card of the catalogue.

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
    """Return what a card was seen to do at most, where the catalogue does not have it.

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
    return Roof(card, peaks or {"float32": 1.0}, byte_per_ns or 1.0, 1, None, None, "book")
