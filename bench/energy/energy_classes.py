"""Compares two ways to predict the power of unmeasured operators: from FLOPs and bytes, and from assumed weights.

By the committed database, with the model that tools/fit_power_model.py fits: every type of operator is left out in turn
and told by the others; errors are by time, over what was measured. The assumed weights (analyze/work_class.py) are
scaled
to the same joules. What lies between the two is drawn anew over types of operators.

Usage: python bench/energy/energy_classes.py --out bench/energy/results/h200/energy_classes.json
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from fit_power_model import CARD, DATABASE, Measured, coefficients_of, held_out, measured_in, off_by, scaled_weights

from gpuledger.ops.database.contents import read_parquet
from gpuledger.simulate.catalogue import find_card

DRAWS = 4000


def judge(database: Measured) -> dict[str, Any]:
    """Return how far the model is off for types of operators that it has not seen, and how far the weights are."""
    types = sorted(set(database.operator.tolist()))
    told = {"assumed_weights": scaled_weights(database), "flops_and_bytes": held_out(database)}
    joules = np.array([float((database.watts_frac * database.ns)[database.operator == one].sum()) for one in types])
    off = {
        name: np.array(
            [float((np.abs(by - database.watts_frac) * database.ns)[database.operator == one].sum()) for one in types]
        )
        for name, by in told.items()
    }
    drawn = np.random.default_rng(0).integers(0, len(types), (DRAWS, len(types)))
    less = (off["flops_and_bytes"] - off["assumed_weights"])[drawn].sum(1) / joules[drawn].sum(1)
    return {
        "records": int(database.ns.size),
        "types": len(types),
        "coefficients": asdict(coefficients_of(database)),
        "off_by_time": {name: off_by(by, database) for name, by in told.items()},
        "less_the_weights_95": [float(one) for one in np.quantile(less, (0.025, 0.975))],
        "by_type": {
            name: {one: float(values[place] / joules[place]) for place, one in enumerate(types)}
            for name, values in off.items()
        },
    }


def main() -> None:
    """Judge and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--database", type=Path, default=DATABASE)
    arguments = parser.parse_args()
    found = judge(measured_in(read_parquet(arguments.database), find_card(CARD)))
    environment = describe_environment("cpu")
    results = {"environment": environment, "database": arguments.database.name, "measured_on": CARD, **found}
    write_results(arguments.out, results)
    print(found["off_by_time"], [round(one, 3) for one in found["less_the_weights_95"]])


if __name__ == "__main__":
    main()
