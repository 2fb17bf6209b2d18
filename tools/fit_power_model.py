"""Fit the model of watts by FLOPs and bytes to the committed database: `python tools/fit_power_model.py`.

Every type of operator is left out in turn and told by the others: what the errors of that are stands beside the
coefficients. Errors are by time. Of products of 16 bits there are hardly any that the power cap did not slow: theirs
are told as at all of the clock.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from gpuledger.analyze.operator_work.power_model import NARROW, TF32, Coefficients
from gpuledger.analyze.operator_work.work_class import CLASSES, class_of
from gpuledger.analyze.posting.launched_work import is_tf32, telling_work_of
from gpuledger.ops.database.contents import Contents, read_parquet
from gpuledger.ops.predict import watts
from gpuledger.simulate.catalogue import GpuModel, find_card

F64 = NDArray[np.float64]
ROOT = Path(__file__).resolve().parent.parent
DATABASE = ROOT / "tests" / "data" / "h200" / "operator_database.parquet"
CARD = "NVIDIA H200"
TABLE = ROOT / "src" / "gpuledger" / "ops" / "predict" / "power_model.json"
SOURCE = "fitted on operators of an NVIDIA H200"
BEGIN = (0.17, 0.01, 0.63, 0.18, 0.07, 0.22, 0.47)
FOUR_FIFTHS = (0.1, 0.9)


@dataclass(frozen=True)
class Measured:
    """One entry per record: its type of operator, dynamic watts as a share of the limit, and shares of the peaks."""

    operator: NDArray[np.str_]
    is_product: NDArray[np.bool_]
    assumed: F64
    watts_frac: F64
    ns: F64
    plain: F64
    tf32: F64
    narrow: F64
    moved: F64


def measured_in(contents: Contents, card: GpuModel) -> Measured:
    """Return every record of a GPU with joules and an operator whose FLOPs and bytes are known."""
    rows = []
    for record in contents.records:
        key = contents.keys[record.key_digest]
        work, numbers, ns = telling_work_of(key), watts.numbers_of_key(key), record.time_median_ns
        if contents.environments[record.environment_digest].card != CARD or work is None or not ns:
            continue
        number = class_of(watts.launcher_of(key), "host")
        is_product = CLASSES[number].name == "matrix"
        is_narrow = is_product and numbers in NARROW
        power_w = watts.dynamic_w(record, slowed=is_narrow)
        if power_w is None or numbers is None or (is_product and numbers == "float64"):
            continue
        cores = numbers if is_narrow else "float32"
        if is_product and numbers == "float32" and is_tf32(" ".join(record.kernels or ())):
            cores = TF32
        used = work.flops / ns / 1e3 / card.peak_tflop_s[cores]
        shares = (used * (cores == "float32"), used * (cores == TF32), used * (cores in NARROW))
        moved = work.bytes / ns / float(card.bandwidth_gb_s.value)
        name, power_frac = watts.launcher_of(key), power_w / card.power_limit_w
        rows.append((name, is_product, CLASSES[number].power, power_frac, ns, *shares, moved))
    names, is_matrix, *columns = zip(*rows, strict=True)
    return Measured(np.array(names), np.array(is_matrix), *(np.array(one, dtype=np.float64) for one in columns))


def told_by(values: F64, database: Measured) -> F64:
    """Return the watts, as shares of the limit, that coefficients tell of each record; as power_model.py does."""
    product, other, gain, plain, tf32, moved, narrow = np.maximum(values, 1e-9)
    filled = database.plain / plain + database.tf32 / tf32 + database.moved / moved
    found = np.where(database.is_product, product, other) - gain * np.expm1(-filled)
    return np.asarray(found + narrow * np.minimum(database.narrow, 1.0), dtype=np.float64)


def fit(database: Measured, chosen: NDArray[np.bool_]) -> F64:
    """Return the coefficients with the least absolute error by time over the chosen records."""
    weight = chosen * database.ns / database.ns.sum()

    def off(values: F64) -> float:
        return float(np.abs(told_by(values, database) - database.watts_frac) @ weight)

    found: F64 = np.maximum(minimize(off, BEGIN, method="Nelder-Mead", options={"maxiter": 6000, "maxfev": 6000}).x, 0)
    return found


def held_out(database: Measured) -> F64:
    """Return what each record is told to be by a fit to the types of operators that are not its own."""
    found = np.zeros(database.ns.size)
    for one in sorted(set(database.operator.tolist())):
        found = np.where(database.operator == one, told_by(fit(database, database.operator != one), database), found)
    return found


def coefficients_of(database: Measured) -> Coefficients:
    """Return the coefficients, with what a fit leaves for types that it has not seen."""
    told = held_out(database)
    ratio, weight = database.watts_frac / told, told * database.ns
    order = np.argsort(ratio)
    by_time = np.cumsum(weight[order]) / weight.sum()
    low, high = (float(ratio[order][np.searchsorted(by_time, part)]) for part in FOUR_FIFTHS)
    values = fit(database, np.ones(database.ns.size, dtype=bool))
    left = [round(low, 3), round(high, 3), round(off_by(told, database), 3)]
    names = [field.name for field in fields(Coefficients)]
    return Coefficients(**dict(zip(names, values.round(4).tolist() + left, strict=True)))


def scaled_weights(database: Measured) -> F64:
    """Return what the assumed weights tell of each record, scaled to the same joules."""
    scaled: F64 = database.assumed * (float(database.watts_frac @ database.ns) / float(database.assumed @ database.ns))
    return scaled


def off_by(told: F64, database: Measured) -> float:
    """Return how far what is told is from what was measured: the mean by time, over what was measured."""
    return float(np.abs(told - database.watts_frac) @ database.ns / (database.watts_frac @ database.ns))


def render() -> str:
    """Return the coefficients as JSON text."""
    database = measured_in(read_parquet(DATABASE, is_ours=True), find_card(CARD))
    about = {
        "source": SOURCE,
        "made_of": str(DATABASE.relative_to(ROOT)),
        "records": int(database.ns.size),
        "types": len(set(database.operator.tolist())),
        "assumed_weights_off_by": round(off_by(scaled_weights(database), database), 3),
    }
    return json.dumps({**about, "coefficients": asdict(coefficients_of(database))}, indent=1) + "\n"


if __name__ == "__main__":
    TABLE.write_text(render(), encoding="utf-8")
