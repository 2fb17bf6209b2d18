"""Watts of an operator that was not measured, by its FLOPs and bytes: how much of a GPU's peaks it uses, and of which.

The coefficients are shares, of peaks and of the GPU's power limit, so that they go with a GPU that was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

F64 = NDArray[np.float64]


TF32 = "tf32"
SHORTEST_S = 1e-9
"""What work takes at least: the clock's tick."""
LEVELS = 100
"""Watts are told apart to so many parts of the most that the model can tell."""

NARROW = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Coefficients:
    """What the watts of work are made of, as shares of the GPU's power limit.

    A floor by the class of work; a gain that saturates with the peaks used, each ``_use`` being the share of a peak at
    which 63 % of it is reached; and what products of 16 bits and less add, in proportion to the share of their peak.
    ``low_frac`` and ``high_frac`` are between what times it four fifths of the watts lie, by time, of operators whose
    type a fit has not seen; ``off_by`` is how far it is from these in the mean.
    """

    product_floor_frac: float
    other_floor_frac: float
    gain_frac: float
    plain_use: float
    tf32_use: float
    bytes_use: float
    narrow_gain_frac: float
    low_frac: float
    high_frac: float
    off_by: float


@dataclass(frozen=True)
class PowerModel:
    """The model on one GPU; its peaks are the datasheet's. ``source`` says in words what it was fitted on."""

    card: str
    source: str
    limit_w: float
    flop_per_s: Mapping[str, float]
    byte_per_s: float
    coefficients: Coefficients

    @property
    def most_w(self) -> float:
        """Return the most watts above the base power that it tells."""
        found = self.coefficients
        return self.limit_w * (found.product_floor_frac + found.gain_frac + found.narrow_gain_frac)

    @property
    def product_w(self) -> float:
        """Return the watts of a product on float32 that uses all of the GPU: what a weight of 1 stands for."""
        return self.limit_w * (self.coefficients.product_floor_frac + self.coefficients.gain_frac)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return between what times the watts that it tells four fifths of the true ones lie."""
        return self.coefficients.low_frac, self.coefficients.high_frac

    @property
    def levels_w(self) -> F64:
        """Return the watts that are told apart."""
        return (np.arange(LEVELS) + 0.5) / LEVELS * self.most_w

    def levels_of(self, watts: F64) -> NDArray[np.int64]:
        """Return which of ``levels_w`` watts are."""
        return np.minimum(watts / self.most_w * LEVELS, LEVELS - 1).astype(np.int64)

    def watts_of(self, flops: F64, moved_bytes: F64, seconds: F64, numbers: str, *, product: bool) -> F64 | None:
        """Return the watts above the base power of work that lasts so long; None where the GPU has no such peak.

        Args:
            flops: float64[n] of all of it.
            moved_bytes: float64[n], read and written at least.
            seconds: float64[n], how long it takes.
            numbers: The kind it computes with.
            product: Whether its class of work is a matrix product: else common cores do it, whatever its numbers.
        """
        cores = numbers if product and numbers in (*NARROW, TF32) else "float32"
        if (product and numbers == "float64") or cores not in self.flop_per_s:
            return None
        lasts_s = np.maximum(seconds, SHORTEST_S)
        used, moved = flops / lasts_s / self.flop_per_s[cores], moved_bytes / lasts_s / self.byte_per_s
        return self.limit_w * share_of_limit(self.coefficients, used, moved, cores, product=product)


def share_of_limit(found: Coefficients, used: F64, moved: F64, cores: str, *, product: bool) -> F64:
    """Return watts as shares of the power limit, by the shares of the peaks that are used."""
    floor = found.product_floor_frac if product else found.other_floor_frac
    full = found.tf32_use if cores == TF32 else found.plain_use
    is_narrow = cores in NARROW
    filled = moved / found.bytes_use + (0.0 if is_narrow else used / full)
    narrow = np.minimum(used, 1.0) * found.narrow_gain_frac if is_narrow else 0.0
    return np.asarray(floor - found.gain_frac * np.expm1(-filled) + narrow, dtype=np.float64)


def model_from(value: Mapping[str, Any]) -> PowerModel:
    """Return the model that :func:`model_to_json` wrote."""
    names = [field.name for field in fields(Coefficients)]
    return PowerModel(
        str(value["card"]),
        str(value["source"]),
        float(value["limit_w"]),
        {str(name): float(peak) for name, peak in value["flop_per_s"].items()},
        float(value["byte_per_s"]),
        Coefficients(**{name: float(value["coefficients"][name]) for name in names}),
    )


def model_to_json(model: PowerModel) -> dict[str, Any]:
    """Return a JSON value that :func:`model_from` reads."""
    return asdict(model)


def model_of(rank: Rank) -> PowerModel | None:
    """Return the model that a run keeps of its GPU; None where the catalogue has no such GPU."""
    value = rank.manifest.power_model
    return None if value is None else model_from(value)
