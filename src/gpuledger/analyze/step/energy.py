"""Energy of a step, attributed to modules, phases, scopes, kernels and operators.

The energy of the whole step is from the GPU's energy counter. The attribution is an estimate. Idle power is divided by
time. The rest is divided in proportion to time and to the expected power of the work: measured power of its type of
operator if the operator database has it, else from FLOPs and bytes if known, else by kind of kernel. Measured and
expected powers are scaled so that they sum to the step's energy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.breakdown import fold_path, fold_scope
from gpuledger.analyze.memory.instant import module_paths
from gpuledger.analyze.memory.lines.source_lines import TEXTS, line_texts, read_stacks
from gpuledger.analyze.operator_work.measured_watts import WattTable, table_of
from gpuledger.analyze.operator_work.power_model import PowerModel, model_of
from gpuledger.analyze.operator_work.work_class import CLASSES
from gpuledger.analyze.step.power_columns import alike, column_count, columns_of
from gpuledger.analyze.step.steps import step_times
from gpuledger.analyze.step.work import StepWork, names_of, read_work
from gpuledger.units import format_frac, format_ns

if TYPE_CHECKING:
    from gpuledger.model.pass_facts import PassEnergy
    from gpuledger.model.run import Rank

F64 = NDArray[np.float64]
Key = tuple[str, ...]

IDLE = "idle"
METHOD = "the base power is divided by time, and the rest by time and expected power. That power "
METHOD_WITHOUT_BASE = "the base power is not known, and all is divided by time and expected power. That power "
MEASURED = "was measured"
MODELLED = "follows from FLOPs and bytes"
ASSUMED = "is assumed by kind of work"
METHOD_WITHOUT_TIMES = "not attributed to modules: the run has no timing measurement"

_ASSUMED = np.array([(one.power, one.low, one.high) for one in CLASSES], dtype=np.float64)

UNUSUAL_RATIO = 1.5
"""From this ratio of their times on, the steps of the energy measurement are unlike the others."""
UNUSUAL = (
    "The steps of the energy measurement took {} each, and usual ones {}. Their energy includes what the program did "
    "between them, such as saving a checkpoint."
)
_ALL = 0.995
"""From this share of the time on, the text does not mention that some is missing."""
_MEASURED_OFF, _TOLD_OFF = 0.1, 0.2
"""Typical relative error of power: measured types; and power expected from FLOPs and bytes, or from the kind."""
ONE_BASE_FRAC = 0.04
"""Relative error of one measurement of the idle power.

Before and after 37 energy measurements, a warming H200 differed by 3.8 % at most (bench/energy/results/h200).
"""
_SCALES = (0.5, 1.5)
"""Range of the scale factors of expected power.

bfloat16 products on an H200 took 1.4 times the power of float32 ones (bench/lib/halves.py, bench/energy/results/h200).
"""


@dataclass(frozen=True)
class EnergyAccount:
    """Energy of one module in one phase, per step. The phase ``idle`` is the idle GPU.

    ``uncertainty_j`` includes the errors of the counter, of the idle power, and of the expected power of each kind of
    work.
    """

    module: str
    phase: str
    energy_j: float
    uncertainty_j: float


@dataclass(frozen=True)
class ScopeEnergy:
    """Energy of one scope in one phase, per step, like :class:`EnergyAccount`; "" outside all scopes."""

    scope: str
    phase: str
    energy_j: float
    uncertainty_j: float


@dataclass(frozen=True)
class EnergyBreakdown:
    """Energy of one step, the mean of ``steps`` steps. The accounts sum to ``step_energy_j``, and so do the scopes.

    Without a timing measurement, both are empty: only the energy of the whole step is known. ``unusual_step_s`` is the
    time of a measured step if it was longer than usual; None otherwise.

    Source: NVML's energy counter for the sum; ``method`` describes the attribution.
    """

    device_idx: int
    steps: int
    step_energy_j: float
    step_uncertainty_j: float
    base_w: float | None
    method: str
    accounts: tuple[EnergyAccount, ...]
    notes: tuple[str, ...]
    scopes: tuple[ScopeEnergy, ...] = ()
    unusual_step_s: float | None = None


@dataclass(frozen=True)
class StepEnergy:
    """The total to attribute: energy and time of one step, and the GPU's idle power with its error ``base_off_w``."""

    device_idx: int
    steps: int
    energy_j: float
    uncertainty_j: float
    duration_s: float
    base_w: float | None
    base_off_w: float
    notes: tuple[str, ...]
    is_usual: bool = True
    """Whether these steps took about as long as others."""


@dataclass(frozen=True)
class Shared:
    """Energy of one key, with its uncertainty."""

    key: Key
    energy_j: float
    uncertainty_j: float


@dataclass(frozen=True)
class Weights:
    """Expected power in W, with bounds, of each column of work.

    Columns are those of :func:`power_columns.columns_of`. ``measured_frac`` and ``modelled_frac`` are fractions of the
    time.
    """

    watts: F64
    low_w: F64
    high_w: F64
    measured_frac: float
    modelled_frac: float


def step_energy(rank: Rank, device_idx: int | None = None) -> StepEnergy | None:
    """Return the energy of one step; None without an energy measurement, or if its energy is unknown.

    Args:
        rank: One process.
        device_idx: torch's index; None selects the GPU that used the most energy.
    """
    passes = [(one.energy_j, one) for one in rank.manifest.energy or () if one.energy_j is not None]
    mine = [(energy_j, one) for energy_j, one in passes if device_idx is None or one.device_idx == device_idx]
    if not mine:
        return None
    energy_j, found = max(mine, key=lambda pair: pair[0])
    count = found.last_step - found.first_step + 1
    duration_ns = (found.end_ns - found.start_ns) / count
    usual_ns = step_times(rank).median_ns
    is_usual = not usual_ns or duration_ns < UNUSUAL_RATIO * usual_ns
    base_w, off_w = _base(found)
    return StepEnergy(
        device_idx=found.device_idx,
        steps=count,
        energy_j=energy_j / count,
        uncertainty_j=(found.uncertainty_j or 0.0) / count,
        duration_s=duration_ns / 1e9,
        base_w=base_w,
        base_off_w=off_w,
        notes=found.notes if is_usual else (*found.notes, UNUSUAL.format(format_ns(duration_ns), format_ns(usual_ns))),
        is_usual=is_usual,
    )


def _base(found: PassEnergy) -> tuple[float | None, float]:
    """Return the idle power and its error: of the GPU idle after the measurement, or before the program.

    Runs of earlier versions have it before and after the measurement.
    """
    seen = [base_w for base_w in (found.base_before_w, found.base_after_w) if base_w is not None]
    if seen:
        base_w = sum(seen) / len(seen)
        return base_w, (max(seen) - min(seen)) / 2 if len(seen) > 1 else ONE_BASE_FRAC * base_w
    return (None, 0.0) if found.idle_w is None else (found.idle_w, 0.25 * found.idle_w)


def break_down_energy(rank: Rank, device_idx: int | None = None) -> EnergyBreakdown | None:
    """Return the energy of one step by module and phase; None without an energy measurement.

    Args:
        rank: One process.
        device_idx: torch's index; None selects the GPU that used the most energy.
    """
    step = step_energy(rank, device_idx)
    if step is None:
        return None
    work = read_work(rank, step.device_idx)
    shares = share_energy(rank, step, ("module", "phase"))
    method = METHOD_WITHOUT_TIMES if work is None else _method(rank, step, work)
    accounts = tuple(EnergyAccount(one.key[0], one.key[1], one.energy_j, one.uncertainty_j) for one in shares)
    by_scope = share_energy(rank, step, ("scope", "phase"))
    scopes = tuple(ScopeEnergy(one.key[0], one.key[1], one.energy_j, one.uncertainty_j) for one in by_scope)
    return EnergyBreakdown(
        device_idx=step.device_idx,
        steps=step.steps,
        step_energy_j=step.energy_j,
        step_uncertainty_j=step.uncertainty_j,
        base_w=step.base_w,
        method=method,
        accounts=accounts,
        notes=(*step.notes, *_notes(step, work)),
        scopes=scopes,
        unusual_step_s=None if step.is_usual else step.duration_s,
    )


def share_energy(rank: Rank, step: StepEnergy, by: Sequence[str], depth: int | None = None) -> tuple[Shared, ...]:
    """Return the energy of one step by any of module, phase, scope, line, function, kernel, operator and kind.

    The values sum to the step's energy. Idle energy has the phase ``idle`` and no other texts. Empty without a timing
    measurement, because nothing divides the energy.
    """
    work = read_work(rank, step.device_idx)
    idle_key = _idle_key(by)
    if work is None:
        return ()
    keys, durations_s = work_by_class(rank, work, by, depth)
    busy_s = work.busy_ns / 1e9
    weights = weigh(durations_s, busy_s, step, table_of(rank), model_of(rank))
    energies_j, off_j, idle_j, idle_off_j = apportion(durations_s, busy_s, step, weights)
    found = [Shared(*row) for row in zip(keys, energies_j.tolist(), off_j.tolist(), strict=True)]
    if idle_j:
        found.append(Shared(idle_key, idle_j, idle_off_j))
    return tuple(sorted(found, key=lambda one: (-one.energy_j, one.key)))


def _idle_key(by: Sequence[str]) -> Key:
    place = by.index("phase") if "phase" in by else 0
    return tuple(IDLE if position == place else "" for position in range(len(by)))


def work_by_class(rank: Rank, work: StepWork, by: Sequence[str], depth: int | None = None) -> tuple[list[Key], F64]:
    """Return the keys of ``by``, and float64[keys, columns]: seconds of one step in each column of :class:`Weights`."""
    names, paths = names_of(rank), module_paths(rank)
    readers: dict[str, tuple[NDArray[Any], Callable[[Any], str]]] = {
        "module": (work.module_id, lambda one: fold_path(paths.get(one, ""), depth)),
        "phase": (work.phase, str),
        "kernel": (work.name_id, lambda one: names.get(one, "")),
        "operator": (work.operator_id, lambda one: names.get(one, "")),
        "kind": (work.kind, str),
        "scope": (work.scope_id, lambda one: fold_scope(names.get(one, ""), depth)),
    }
    for name in TEXTS.keys() & set(by):
        readers[name] = work.stack_id, partial(_text_of, line_texts(read_stacks(rank), name))
    first, which = alike(*(readers[name][0] for name in by))
    texts = [[readers[name][1](one) for one in readers[name][0][first].tolist()] for name in by]
    places: dict[Key, int] = {}
    place = np.array([places.setdefault(key, len(places)) for key in zip(*texts, strict=True)], dtype=np.int64)
    table, model = table_of(rank), model_of(rank)
    sums = np.zeros((len(places), column_count(table, model)), dtype=np.float64)
    np.add.at(sums, (place[which], columns_of(work, names, table, model)), work.duration_ns / 1e9 / work.steps)
    return list(places), sums


def _text_of(texts: Mapping[int, str], number: int) -> str:
    return texts.get(number, "")


def weigh(
    durations_s: F64, busy_s: float, step: StepEnergy, table: WattTable | None, model: PowerModel | None = None
) -> Weights:
    """Return the expected power of each column of ``durations_s``.

    Measured types have their measured power; the others the power expected from FLOPs and bytes or from their kind.
    Both are scaled, within bounds, to sum to the step's dynamic energy.

    Args:
        durations_s: Seconds of one step by key, and by the columns of :func:`power_columns.columns_of`.
        busy_s: Seconds of one step in which anything ran, overlaps counted once.
        step: The total to attribute.
        table: Power measured on this GPU.
        model: Power expected from FLOPs and bytes.
    """
    by_kind = durations_s.sum(axis=0)
    known_w, told_w = _known_watts(table, model)
    assumed, measured, modelled = np.split(by_kind, [len(CLASSES), len(CLASSES) + len(known_w)])
    unit_w = model.product_w if model is not None else float(known_w[:, 0].max(initial=0)) or 1.0
    expected_j = float(assumed @ _ASSUMED[:, 0]) * unit_w + float(modelled @ told_w[:, 0])
    dynamic_j = step.energy_j - (step.base_w or 0.0) * max(step.duration_s, busy_s)
    measured_scale, scale = _scales(float(measured @ known_w[:, 0]), expected_j, dynamic_j)
    watts, low_w, high_w = np.concatenate([_ASSUMED * unit_w * scale, known_w * measured_scale, told_w * scale]).T
    total_s = float(by_kind.sum()) or 1.0
    return Weights(watts, low_w, high_w, float(measured.sum()) / total_s, float(modelled.sum()) / total_s)


def _scales(measured_j: float, expected_j: float, dynamic_j: float) -> tuple[float, float]:
    """Return the scale factors of measured and of expected energy that make their sum the dynamic energy.

    Of all such pairs, the one closest to 1 and 1 relative to the errors: measured energy is changed less. If there is
    only one of the two, the factor cancels out.
    """
    if not measured_j or not expected_j:
        return 1.0, 1.0
    gives = (_MEASURED_OFF**2 * measured_j, _TOLD_OFF**2 * expected_j)
    short_j = dynamic_j - measured_j - expected_j
    force = short_j / (gives[0] * measured_j + gives[1] * expected_j)
    measured_scale, scale = (min(max(1 + one * force, _SCALES[0]), _SCALES[1]) for one in gives)
    return measured_scale, scale


def _known_watts(table: WattTable | None, model: PowerModel | None) -> tuple[F64, F64]:
    """Return power and bounds of the measured columns, and of those known from the model only."""
    types = () if table is None else table.types
    known_w = np.array([(one.watts, one.low_w, one.high_w) for one in types], dtype=np.float64).reshape(-1, 3)
    if model is None:
        return known_w, np.zeros((0, 3), dtype=np.float64)
    levels_w = model.levels_w[:, None]
    by_type = levels_w * ([1, 1, 1] if table is None else [1, table.low_frac, table.high_frac])
    return np.concatenate([known_w, by_type]), levels_w * [1, *model.bounds]


def apportion(durations_s: F64, busy_s: float, step: StepEnergy, weights: Weights) -> tuple[F64, F64, float, float]:
    """Return energy and uncertainty of each key, and of idle time. The energies sum to the step's.

    Idle power is attributed to idle time and to the keys, by their share of the time. The rest is attributed by time
    and expected power. If idle power alone exceeds the step's energy, there is no rest, and it is reduced to the
    step's.

    Args:
        durations_s: Seconds of one step by key, and by the columns of ``weights``.
        busy_s: Seconds of one step in which anything ran, overlaps counted once.
        step: The total to attribute.
        weights: Expected power of each column.
    """
    total_s = float(durations_s.sum()) or 1.0
    length_s = max(step.duration_s, busy_s)
    base_j = min((step.base_w or 0.0) * length_s, step.energy_j)
    idle_frac = 1.0 - busy_s / length_s if length_s else 0.0
    dynamic_j = step.energy_j - base_j
    by_time = durations_s.sum(axis=1) / total_s
    weighted = durations_s @ weights.watts
    by_kind = weighted / (float(weighted.sum()) or 1.0)
    idle_j = base_j * idle_frac
    energies_j = (base_j - idle_j) * by_time + dynamic_j * by_kind
    energies_j[-1] += step.energy_j - math.fsum([*energies_j.tolist(), idle_j])
    base_off_j = min(step.base_off_w * length_s, base_j)
    spread_j = dynamic_j * _half_range(durations_s, weights) + base_off_j * np.abs((1 - idle_frac) * by_time - by_kind)
    counted = step.uncertainty_j / step.energy_j if step.energy_j else 0.0
    return energies_j, spread_j + energies_j * counted, idle_j, idle_j * counted + base_off_j * idle_frac


def _half_range(durations_s: F64, weights: Weights) -> F64:
    """Return half the range of each key's share if every kind of work can have any power within its bounds."""
    low, high = durations_s @ weights.low_w, durations_s @ weights.high_w
    most = high / np.maximum(high + (low.sum() - low), 1e-300)
    least = low / np.maximum(low + (high.sum() - high), 1e-300)
    half: F64 = (most - least) / 2
    return half


def _method(rank: Rank, step: StepEnergy, work: StepWork) -> str:
    """Return a description of the attribution: which share of the time has measured power, and which modelled."""
    how, table, model = METHOD if step.base_w is not None else METHOD_WITHOUT_BASE, table_of(rank), model_of(rank)
    weights = weigh(work_by_class(rank, work, ("kind",))[1], work.busy_ns / 1e9, step, table, model)
    sources = []
    if table is not None and weights.measured_frac:
        sources.append((weights.measured_frac, MEASURED, table.source))
    if model is not None and weights.modelled_frac:
        sources.append((weights.modelled_frac, MODELLED, model.source))
    if sum(frac for frac, *_ in sources) >= _ALL and len(sources) == 1:
        return f"{how}{sources[0][1]} ({sources[0][2]})"
    parts = [f"{what} for {format_frac(frac, 0)} of the time ({source})" for frac, what, source in sources]
    if sum(frac for frac, *_ in sources) < _ALL:
        parts.append(f"{ASSUMED} for the rest" if sources else ASSUMED)
    return how + " and ".join([*([", ".join(parts[:-1])] if len(parts) > 1 else []), parts[-1]])


def _notes(step: StepEnergy, work: StepWork | None) -> list[str]:
    if work is None:
        return ["Energy is known for whole steps only, because the run has no timing measurement."]
    notes = []
    if step.base_w is None:
        notes.append("The base power is unknown, so no energy is attributed to idle time.")
    elif step.base_w * step.duration_s > step.energy_j:
        notes.append("The step used less energy than an idle GPU would, so all of it is attributed by time.")
    if work.on_host:
        notes.append("No kernels were seen, so energy is attributed by the time of operators on the CPU.")
    return notes
