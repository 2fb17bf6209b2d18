"""Make the table of measured watts that ships, from an operator database: `python tools/make_measured_watts.py`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.operator_work.work_class import CLASSES, class_of
from gpuledger.ops.database.contents import Contents, read_parquet
from gpuledger.ops.predict.watts import groups_of, predicted_by_others, ratios_of, watts_of

ROOT = Path(__file__).resolve().parent.parent
DATABASE = ROOT / "tests" / "data" / "h200" / "operator_database.parquet"
CARD = "NVIDIA H200"
TABLE = ROOT / "src" / "gpuledger" / "ops" / "predict" / "measured" / "nvidia_h200.json"
SOURCE = "operators measured on such a GPU, shipped with gpuledger"


def errors(contents: Contents) -> dict[str, float]:
    """Return how far the assumed weights, and the watts of a type's other records, are from each record's watts.

    Mean of what lies between, over what was measured, by time. The assumed weights are scaled to the same joules.
    """
    groups = groups_of(contents, CARD)
    rows = [(name, watts, ns) for (name, _), found in groups.items() for watts, ns in found]
    measured, times = (np.array(column) for column in list(zip(*rows, strict=True))[1:])
    assumed = np.array([CLASSES[class_of(name, "host")].power for name, *_ in rows])
    assumed *= (measured @ times) / (assumed @ times)
    others = np.concatenate([_others(np.array(found)) for found in groups.values()])
    total_j = float(measured @ times)
    return {
        "assumed_weights": round(float(np.abs(assumed - measured) @ times) / total_j, 3),
        "other_records_of_the_type": round(float(np.abs(others - measured) @ times) / total_j, 3),
        "others_by_flops_and_bytes": round(_off_by_flops(contents), 3),
    }


def _off_by_flops(contents: Contents) -> float:
    """Return how far a record's watts are from those told by its FLOPs and bytes and by its type's others."""
    groups = ratios_of(contents, CARD).values()
    off = np.concatenate([np.abs(predicted_by_others(found) - found[:, 0]) * found[:, 2] for found in groups])
    return float(off.sum() / sum(float(found[:, 0] @ found[:, 2]) for found in groups))


def _others(found: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each record the mean of the others of its type, by time."""
    watts, times = found[:, 0], found[:, 1]
    mean: NDArray[np.float64] = (watts @ times - watts * times) / (times.sum() - times)
    return mean


def render() -> str:
    """Return the table as JSON text."""
    contents = read_parquet(DATABASE, is_ours=True)
    table = watts_of(contents, CARD, SOURCE)
    assert table is not None, f"{DATABASE} holds no energies of an {CARD}"
    environments = [one for one in contents.environments.values() if one.card == CARD]
    last_ns = max(record.measured_ns for record in contents.records)
    about = {
        "made_of": str(DATABASE.relative_to(ROOT)),
        "measured_on": time.strftime("%Y-%m-%d", time.gmtime(last_ns / 1e9)),
        "drivers": sorted({str(one.driver) for one in environments}),
        "off_by": errors(contents),
        "torch": sorted({one.torch for one in environments}),
    }
    return json.dumps({**table.to_json(), **about}, indent=1) + "\n"


if __name__ == "__main__":
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(render(), encoding="utf-8")
