"""Dynamic power (above base power) by operator type, from a database, to attribute energy to layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.operator_work.measured_watts import MeasuredType, WattTable, table_from
from gpuledger.analyze.operator_work.power_model import TF32, PowerModel
from gpuledger.analyze.operator_work.work_class import CLASSES, class_of
from gpuledger.analyze.posting.launched_work import is_tf32, telling_work_of
from gpuledger.errors import InputError, UsageError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.contents import Contents, contents_of
from gpuledger.ops.database.records import Record
from gpuledger.ops.database.shipped import named_database
from gpuledger.ops.predict.power import find_power_model

F64 = NDArray[np.float64]

LAUNCHED_BY = {
    "aten::convolution": "aten::cudnn_convolution",
    "aten::relu_": "aten::clamp_min_",
    "aten::clone": "aten::copy_",
    "aten::_scaled_dot_product_efficient_attention": "aten::_efficient_attention_forward",
    "aten::_scaled_dot_product_flash_attention": "aten::_flash_attention_forward",
    "aten::_scaled_dot_product_cudnn_attention": "aten::_cudnn_attention_forward",
    "aten::_scaled_dot_product_efficient_attention_backward": "aten::_efficient_attention_backward",
    "aten::_scaled_dot_product_flash_attention_backward": "aten::_flash_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward": "aten::_cudnn_attention_backward",
}
"""Operator that launches the kernels, as named in a trace, for operators that call another one."""

LONG_NS = 20_000
"""Least duration of a record. Shorter ones are dominated by launches (some µs per kernel in a graph)."""

SAME_CLOCK = 0.95
"""Least ratio of the clocks of the energy and the time measurement. Below it, the power limit lowered the clock during
the energy measurement, and the record is not used. An H200's bfloat16 products run at 0.85 under sustained load."""

LEAST = 3
"""Least records of a type, to estimate the spread."""

LOW, HIGH = 0.1, 0.9


def watts_of(contents: Contents, card: str, source: str) -> WattTable | None:
    """Return the table of a GPU's power by operator type; None if the database has no energy of that GPU.

    Args:
        contents: The database.
        card: The GPU's name, as reported by the driver.
        source: Description of the database.

    Source: NVML energy counter at ticks, over many calls, minus the GPU's base power.
    """
    ratios = ratios_of(contents, card)
    types = tuple(
        replace(_type(*name, found), of_model=_of_all(ratios.get(name)))
        for name, found in sorted(groups_of(contents, card).items())
    )
    return WattTable(card, source, types, *_bounds(list(ratios.values()))) if types else None


def ratios_of(contents: Contents, card: str) -> dict[tuple[str, str], F64]:
    """Return (operator, dtype) -> float64[n, 3]: measured power (W), modelled power (W), duration (ns) of records.

    Empty if the GPU is not in the catalogue. Types with fewer than LEAST records are left out.
    """
    model = find_power_model(card)
    groups: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for record in contents.records if model is not None else ():
        if contents.environments[record.environment_digest].card != card:
            continue
        key, watts, time_ns = contents.keys[record.key_digest], dynamic_w(record), record.time_median_ns
        numbers = numbers_of_key(key)
        modelled_w = (
            None if watts is None or numbers is None or model is None else _modelled_w(key, record, numbers, model)
        )
        if watts is not None and numbers is not None and modelled_w and time_ns is not None:
            groups.setdefault((launcher_of(key), numbers), []).append((watts, modelled_w, time_ns))
    return {name: np.array(found, dtype=np.float64) for name, found in groups.items() if len(found) >= LEAST}


def _modelled_w(key: OperatorKey, record: Record, numbers: str, model: PowerModel) -> float | None:
    """Return the modelled power of a record in W; None if the model does not apply."""
    work = telling_work_of(key)
    if work is None:
        return None
    cores = TF32 if numbers == "float32" and is_tf32(" ".join(record.kernels or ())) else numbers
    product = CLASSES[class_of(launcher_of(key), "host")].name == "matrix"
    flops, moved_bytes, time_ns = (
        np.array([one], dtype=np.float64) for one in (work.flops, work.bytes, record.time_median_ns)
    )
    watts = model.watts_of(flops, moved_bytes, time_ns / 1e9, cores, product=product)
    return None if watts is None else float(watts[0])


def _of_all(found: F64 | None) -> float | None:
    """Return the ratio of measured to modelled energy of a type."""
    return None if found is None else round(float(found[:, 0] @ found[:, 2] / (found[:, 1] @ found[:, 2])), 3)


def _bounds(groups: list[F64]) -> tuple[float, float]:
    """Return the 80 % prediction interval of records, as factors of the prediction from others of the type."""
    if not groups:
        return 1.0, 1.0
    ratio = np.concatenate([one[:, 0] / predicted_by_others(one) for one in groups])
    time_ns = np.concatenate([one[:, 2] for one in groups])
    order = np.argsort(ratio)
    by_time = np.cumsum(time_ns[order]) / time_ns.sum()
    low, high = (float(ratio[order][np.searchsorted(by_time, part)]) for part in (LOW, HIGH))
    return round(min(low, 1.0), 3), round(max(high, 1.0), 3)


def predicted_by_others(found: F64) -> F64:
    """Return each record's modelled power in W, scaled by the ratio of the other records of its type."""
    joules, modelled_j = found[:, 0] * found[:, 2], found[:, 1] * found[:, 2]
    predicted: F64 = found[:, 1] * (joules.sum() - joules) / (modelled_j.sum() - modelled_j)
    return predicted


def groups_of(contents: Contents, card: str) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return (operator, dtype) -> dynamic power (W) and duration (ns) of every record of one GPU.

    Types with fewer than LEAST records are left out.
    """
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for record in contents.records:
        if contents.environments[record.environment_digest].card != card:
            continue
        watts = dynamic_w(record)
        key = contents.keys[record.key_digest]
        numbers = numbers_of_key(key)
        if watts is not None and numbers is not None and record.time_median_ns is not None:
            groups.setdefault((launcher_of(key), numbers), []).append((watts, record.time_median_ns))
    return {name: found for name, found in groups.items() if len(found) >= LEAST}


def find_watts(card: str, environment: Mapping[str, str]) -> WattTable | None:
    """Return the power table of a GPU: from the user's database, or else the one in this package.

    Args:
        card: The GPU's name, as reported by the driver.
        environment: ``GPULEDGER_DATABASE`` names the database; by default, ``operators.db``.
    """
    database = named_database(environment.get("GPULEDGER_DATABASE"))
    try:
        own = None if database is None else watts_of(contents_of(database), card, "your operator database")
    except (UsageError, InputError):  # no SQLAlchemy, or no database: use the table of the package
        own = None
    return own or shipped(card)


def shipped(card: str) -> WattTable | None:
    """Return the table of a GPU in this package; None if there is none."""
    for place in sorted(files("gpuledger.ops.predict").joinpath("measured").iterdir(), key=lambda one: one.name):
        if place.name.endswith(".json"):
            value = json.loads(place.read_text(encoding="utf-8"))
            if value["card"] == card:
                return table_from(value)
    return None


def dynamic_w(record: Record, *, slowed: bool = False) -> float | None:
    """Return the power of a record above base power in W; None if unknown, or for short or throttled records.

    Args:
        record: One measurement.
        slowed: Include throttled records. The energy of a call is about proportional to the clock, because the voltage
            changes with it.
    """
    time_ns, energy_j, base_w = record.time_median_ns, record.energy_median_j, record.base_w
    if record.status != "ok" or not time_ns or energy_j is None or base_w is None or time_ns < LONG_NS:
        return None
    clock_frac = _clock_frac(record)
    if clock_frac < SAME_CLOCK and not slowed:
        return None
    return max(energy_j / time_ns * 1e9 - base_w, 0.0) / (clock_frac if clock_frac < SAME_CLOCK else 1.0)


def _clock_frac(record: Record) -> float:
    """Return the ratio of the clocks of a record's energy and time measurements; 1 if unknown."""
    burst = next((block.get("burst_clock_mhz") for block in record.blocks if block.get("kind") == "summary"), None)
    energies = [block for block in record.blocks if block.get("kind") == "energy"]
    held = [block["sm_clock_mhz"] for block in energies if block.get("sm_clock_mhz")]
    return float(np.median(held)) / float(burst) if held and burst else 1.0


def launcher_of(key: OperatorKey) -> str:
    """Return the operator that launches a key's kernels, as named in a trace."""
    called = f"{key.operator.partition('.')[0]}::{key.name}"
    return LAUNCHED_BY.get(called, called)


def numbers_of_key(key: OperatorKey) -> str | None:
    """Return the dtype of the first floating-point tensor among a key's inputs; None if there is none."""
    return next((str(one["dtype"]) for one in key.tensors() if "float" in one["dtype"]), None)


def _type(operator: str, numbers: str, found: list[tuple[float, float]]) -> MeasuredType:
    watts, times_ns = (np.array(column, dtype=np.float64) for column in zip(*found, strict=True))
    low, high = np.quantile(watts, [LOW, HIGH])
    mean = float((watts * times_ns).sum() / times_ns.sum())
    return MeasuredType(
        operator, numbers, round(mean, 1), round(min(float(low), mean), 1), round(max(float(high), mean), 1), len(found)
    )
