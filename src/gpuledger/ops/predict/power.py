"""The model of watts by FLOPs and bytes on a GPU: coefficients fitted on a database, peaks of the catalogue."""

from __future__ import annotations

import json
from importlib.resources import files

from gpuledger.analyze.operator_work.power_model import Coefficients, PowerModel
from gpuledger.errors import UsageError
from gpuledger.simulate.catalogue import find_card

PLACE = "power_model.json"
"""The coefficients, beside this file; ``tools/fit_power_model.py`` makes it."""


def find_power_model(card: str) -> PowerModel | None:
    """Return the model of a GPU; None where the catalogue does not have it.

    Args:
        card: The GPU's name, as the driver tells it.

    Source: the datasheet's peaks and power limit; coefficients of the GPU that was measured.
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
