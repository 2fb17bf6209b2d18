"""The power model of a GPU in the catalogue: fitted coefficients, and peak rates from its data sheet."""

from __future__ import annotations

import json
from importlib.resources import files

from gpuledger.analyze.operator_work.power_model import Coefficients, PowerModel
from gpuledger.errors import UsageError
from gpuledger.simulate.catalogue import find_card

PLACE = "power_model.json"
"""File of the coefficients in this package, written by ``tools/fit_power_model.py``."""


def find_power_model(card: str) -> PowerModel | None:
    """Return the power model of a GPU; None if it is not in the catalogue.

    Args:
        card: The GPU's name, as reported by the driver.

    Source: peak rates and power limit of the data sheet; coefficients from measurements on an H200.
    """
    try:
        found = find_card(card)
    except UsageError:
        return None
    value = json.loads(files("gpuledger.ops.predict").joinpath(PLACE).read_text(encoding="utf-8"))
    return PowerModel(
        card=found.name,
        source=str(value["source"]),
        limit_w=float(found.power_limit_w),
        flop_per_s={name: peak * 1e12 for name, peak in found.peak_tflop_s.items()},
        byte_per_s=found.bandwidth_gb_s.value * 1e9,
        coefficients=Coefficients(**value["coefficients"]),
    )
