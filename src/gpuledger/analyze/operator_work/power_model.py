"""Power of an operator that was not measured, from its FLOPs and bytes as shares of the GPU's peak rates.

The coefficients are shares of peak rates and of the GPU's power limit, so they also apply to GPUs without measurements.
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
"""Shortest duration of work, in seconds: one tick of the clock."""
LEVELS = 100
"""Number of levels into which power is divided, from 0 to the largest power that the model predicts."""

NARROW = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of the power model, as shares of the GPU's power limit.

    Power is the sum of three terms: a floor for the class of work; a gain that saturates with the used share of the
    peak rates; and for products of 16 bits or less, a term proportional to the used share of their peak rate. Each
    ``_use`` is the share at which the gain reaches 63 %. ``low_frac`` and ``high_frac`` are the 80 % prediction
    interval as factors of the prediction, weighted by time, for operator types that were not part of the fit.
    ``off_by`` is the mean error for these types.
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
    """The model for one GPU, with peak rates of its data sheet. ``source`` describes the measurements of the fit."""

    card: str
    source: str
    limit_w: float
    flop_per_s: Mapping[str, float]
    byte_per_s: float
    coefficients: Coefficients

    @property
    def most_w(self) -> float:
        """Return the largest power above the base power that the model predicts, in W."""
        found = self.coefficients
        return self.limit_w * (found.product_floor_frac + found.gain_frac + found.narrow_gain_frac)

    @property
    def product_w(self) -> float:
        """Return the power of a float32 product that uses the whole GPU, in W. It has the weight 1."""
        return self.limit_w * (self.coefficients.product_floor_frac + self.coefficients.gain_frac)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the 80 % prediction interval, as factors of the predicted power."""
        return self.coefficients.low_frac, self.coefficients.high_frac

    @property
    def levels_w(self) -> F64:
        """Return the power of each level, float64[LEVELS], in W."""
        return (np.arange(LEVELS) + 0.5) / LEVELS * self.most_w

    def levels_of(self, watts: F64) -> NDArray[np.int64]:
        """Return the index in ``levels_w`` of each power, int64[n]."""
        return np.minimum(watts / self.most_w * LEVELS, LEVELS - 1).astype(np.int64)

    def watts_of(self, flops: F64, moved_bytes: F64, seconds: F64, numbers: str, *, product: bool) -> F64 | None:
        """Return the power of work above the base power, float64[n] in W; None if the peak rate is not known.

        Args:
            flops: float64[n], FLOPs of the work.
            moved_bytes: float64[n], least number of bytes read and written.
            seconds: float64[n], duration of the work.
            numbers: Data type of the computation.
            product: Whether it is a matrix product. Other work does not use tensor cores, for any data type.
        """
        cores = numbers if product and numbers in (*NARROW, TF32) else "float32"
        if (product and numbers == "float64") or cores not in self.flop_per_s:
            return None
        lasts_s = np.maximum(seconds, SHORTEST_S)
        used, moved = flops / lasts_s / self.flop_per_s[cores], moved_bytes / lasts_s / self.byte_per_s
        return self.limit_w * share_of_limit(self.coefficients, used, moved, cores, product=product)


def share_of_limit(found: Coefficients, used: F64, moved: F64, cores: str, *, product: bool) -> F64:
    """Return power as shares of the power limit, from the used shares of the peak rates."""
    floor = found.product_floor_frac if product else found.other_floor_frac
    full = found.tf32_use if cores == TF32 else found.plain_use
    is_narrow = cores in NARROW
    filled = moved / found.bytes_use + (0.0 if is_narrow else used / full)
    narrow = np.minimum(used, 1.0) * found.narrow_gain_frac if is_narrow else 0.0
    return np.asarray(floor - found.gain_frac * np.expm1(-filled) + narrow, dtype=np.float64)


def model_from(value: Mapping[str, Any]) -> PowerModel:
    """Return the model from the JSON value of :func:`model_to_json`."""
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
    """Return the power model in a run's manifest; None if the catalogue does not have its GPU."""
    value = rank.manifest.power_model
    return None if value is None else model_from(value)
