"""Dynamic watts by type of operator, from a database: how hard each drives its GPU, for the joules of layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.operator_work.measured_watts import MeasuredType, WattTable, table_from
from gpuledger.analyze.operator_work.power_model import TF32, PowerModel
from gpuledger.analyze.operator_work.work_class import CLASSES, class_of
from gpuledger.analyze.posting.launched_work import is_tf32, telling_work_of
from gpuledger.config import DEFAULT_DATABASE
from gpuledger.errors import InputError, UsageError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.contents import Contents, contents_of
from gpuledger.ops.database.records import Record
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
"""The operator that launches the kernels, where it is not the one that is called: a trace tells the former."""

LONG_NS = 20_000
"""A record of less says more of the launch than of the work (replayed as a graph: some microseconds a kernel)."""

SAME_CLOCK = 0.95
"""A record whose joules were measured at less of the clock that its time was is left out: the power cap had it in hand,
and its watts are not those at all of the clock. An H200's products of bfloat16 run at 0.85 of it for long."""

LEAST = 3
"""Records of a type; fewer do not tell how far such operators are apart."""

LOW, HIGH = 0.1, 0.9


def watts_of(contents: Contents, card: str, source: str) -> WattTable | None:
    """Return what a database holds of one GPU's watts; None where it has no energies of that GPU.

    Args:
        contents: The database.
        card: The GPU's name, as the driver tells it.
        source: Whose database it is, in words.

    Source: energy and time of one call over many, less the GPU's base power; by tick of the NVML counter.
    """
    ratios = ratios_of(contents, card)
    types = tuple(
        replace(_type(*name, found), of_model=_of_all(ratios.get(name)))
        for name, found in sorted(groups_of(contents, card).items())
    )
    return WattTable(card, source, types, *_bounds(list(ratios.values()))) if types else None


def ratios_of(contents: Contents, card: str) -> dict[tuple[str, str], F64]:
    """Return watts measured, watts told by FLOPs and bytes, and nanoseconds of records, by operator and kind of number.

    float64[n, 3]; none where the catalogue lacks the GPU; types with fewer than LEAST records are left out.
    """
    model = find_power_model(card)
    groups: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for record in contents.records if model is not None else ():
        if contents.environments[record.environment_digest].card != card:
            continue
        key, watts, time_ns = contents.keys[record.key_digest], dynamic_w(record), record.time_median_ns
        numbers = numbers_of_key(key)
        told_w = None if watts is None or numbers is None or model is None else _told_w(key, record, numbers, model)
        if watts is not None and numbers is not None and told_w and time_ns is not None:
            groups.setdefault((launcher_of(key), numbers), []).append((watts, told_w, time_ns))
    return {name: np.array(found, dtype=np.float64) for name, found in groups.items() if len(found) >= LEAST}


def _told_w(key: OperatorKey, record: Record, numbers: str, model: PowerModel) -> float | None:
    """Return the watts that FLOPs and bytes tell of one record; None where they tell none."""
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
    """Return how many times the joules told those measured of a type are."""
    return None if found is None else round(float(found[:, 0] @ found[:, 2] / (found[:, 1] @ found[:, 2])), 3)


def _bounds(groups: list[F64]) -> tuple[float, float]:
    """Return between what times what its type's others tell four fifths of the records lie."""
    if not groups:
        return 1.0, 1.0
    ratio = np.concatenate([one[:, 0] / told_by_others(one) for one in groups])
    time_ns = np.concatenate([one[:, 2] for one in groups])
    order = np.argsort(ratio)
    by_time = np.cumsum(time_ns[order]) / time_ns.sum()
    low, high = (float(ratio[order][np.searchsorted(by_time, part)]) for part in (LOW, HIGH))
    return round(min(low, 1.0), 3), round(max(high, 1.0), 3)


def told_by_others(found: F64) -> F64:
    """Return the watts of each record by its FLOPs and bytes, and by how the others of its type compare with theirs."""
    joules, told_j = found[:, 0] * found[:, 2], found[:, 1] * found[:, 2]
    told: F64 = found[:, 1] * (joules.sum() - joules) / (told_j.sum() - told_j)
    return told


def groups_of(contents: Contents, card: str) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return dynamic watts and nanoseconds of every record of one GPU, by operator and kind of number.

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
    """Return what was measured on a GPU of this name: by the user's own database, else by the table that ships.

    Args:
        card: The GPU's name, as the driver tells it.
        environment: ``GPULEDGER_DATABASE`` in it names the database; else it is ``operators.db`` here.
    """
    database = environment.get("GPULEDGER_DATABASE") or (DEFAULT_DATABASE if Path(DEFAULT_DATABASE).is_file() else None)
    try:
        own = None if database is None else watts_of(contents_of(database), card, "your operator database")
    except (UsageError, InputError):  # no SQLAlchemy, or no database there: joules are shared all the same
        own = None
    return own or shipped(card)


def shipped(card: str) -> WattTable | None:
    """Return the table of one GPU that ships with the package; None where there is none."""
    for place in sorted(files("gpuledger.ops.predict").joinpath("measured").iterdir(), key=lambda one: one.name):
        if place.name.endswith(".json"):
            value = json.loads(place.read_text(encoding="utf-8"))
            if value["card"] == card:
                return table_from(value)
    return None


def dynamic_w(record: Record, *, slowed: bool = False) -> float | None:
    """Return watts above the base power; None where they are not known, of a short call, or of one that was slowed.

    Args:
        record: One measurement.
        slowed: Tell those as well whose joules were taken at less of the clock. A call's joules fall with the clock, in
            proportion about: the voltage goes with it.
    """
    time_ns, energy_j, base_w = record.time_median_ns, record.energy_median_j, record.base_w
    if record.status != "ok" or not time_ns or energy_j is None or base_w is None or time_ns < LONG_NS:
        return None
    clock_frac = _clock_frac(record)
    if clock_frac < SAME_CLOCK and not slowed:
        return None
    return max(energy_j / time_ns * 1e9 - base_w, 0.0) / (clock_frac if clock_frac < SAME_CLOCK else 1.0)


def _clock_frac(record: Record) -> float:
    """Return the clock that a record's joules were measured at over that of its time; 1 where it was not kept."""
    burst = next((block.get("burst_clock_mhz") for block in record.blocks if block.get("kind") == "summary"), None)
    energies = [block for block in record.blocks if block.get("kind") == "energy"]
    held = [block["sm_clock_mhz"] for block in energies if block.get("sm_clock_mhz")]
    return float(np.median(held)) / float(burst) if held and burst else 1.0


def launcher_of(key: OperatorKey) -> str:
    """Return the operator that launches a key's kernels, as a trace calls it."""
    called = f"{key.operator.partition('.')[0]}::{key.name}"
    return LAUNCHED_BY.get(called, called)


def numbers_of_key(key: OperatorKey) -> str | None:
    """Return the kind of the first floating tensor among a key's inputs; None where there is none."""
    return next((str(one["dtype"]) for one in key.tensors() if "float" in one["dtype"]), None)


def _type(operator: str, numbers: str, found: list[tuple[float, float]]) -> MeasuredType:
    watts, times_ns = (np.array(column, dtype=np.float64) for column in zip(*found, strict=True))
    low, high = np.quantile(watts, [LOW, HIGH])
    mean = float((watts * times_ns).sum() / times_ns.sum())
    return MeasuredType(
        operator, numbers, round(mean, 1), round(min(float(low), mean), 1), round(max(float(high), mean), 1), len(found)
    )
