"""Whose joules they are: a step's energy, apportioned to modules, phases, kernels and operators.

The energy of the step is the GPU's counter's. A share of it is an apportionment: the base power runs all the time and
goes by time, what is left goes in proportion to time and to how hard the work drives the GPU: by the watts measured of
its type of operator where the run keeps some, else by its FLOPs and bytes where these are known, else by its kind. How
what was measured compares with the others is fitted to the step's joules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.breakdown import fold_path, fold_scope
from gpuledger.analyze.memory.instant import module_paths
from gpuledger.analyze.operator_work.measured_watts import WattTable, table_of
from gpuledger.analyze.operator_work.power_model import PowerModel, model_of
from gpuledger.analyze.operator_work.work_class import CLASSES
from gpuledger.analyze.step.power_columns import alike, column_count, columns_of
from gpuledger.analyze.step.work import Work, names_of, read_work

if TYPE_CHECKING:
    from gpuledger.model.manifest import PassEnergy
    from gpuledger.model.run import Rank

F64 = NDArray[np.float64]
Key = tuple[str, ...]

IDLE = "idle"
METHOD = "base power by time, the rest by time and "
METHOD_WITHOUT_BASE = "the base power is not known, all by time and "
MEASURED = "measured power"
MODELLED = "FLOPs and bytes"
ASSUMED = "kind of work (assumed weights)"
METHOD_WITHOUT_TIMES = "not attributed to modules: the run has no timing measurement"

_ASSUMED = np.array([(one.power, one.low, one.high) for one in CLASSES], dtype=np.float64)

_ALL = 0.995
"""From what share of the time on it goes without saying that it is not all."""
_MEASURED_OFF, _TOLD_OFF = 0.1, 0.2
"""How far watts are off about, as a share: of measured types, and of what FLOPs and bytes or weights tell."""
_SCALES = (0.5, 1.5)
"""Between what times what is expected watts lie. An H200's products of bfloat16 took 1.4 times those of float32
(bench/lib/halves.py, bench/energy/results/h200)."""


@dataclass(frozen=True)
class EnergyAccount:
    """One module in one phase, per step; the phase ``idle`` is the GPU with nothing to do.

    ``uncertainty_j`` holds the counter's, the base power's, and what the bounds of each kind of work can make.
    """

    module: str
    phase: str
    energy_j: float
    uncertainty_j: float


@dataclass(frozen=True)
class ScopeEnergy:
    """One scope in one phase, per step, as an :class:`EnergyAccount` is for a module; "" outside every scope."""

    scope: str
    phase: str
    energy_j: float
    uncertainty_j: float


@dataclass(frozen=True)
class EnergyBreakdown:
    """The joules of one step of the energy pass, the mean of ``steps`` steps; the accounts sum to ``step_energy_j``.

    So do the scopes.

    Source: NVML's energy counter for the sum; ``method`` for the shares.
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


@dataclass(frozen=True)
class StepEnergy:
    """What is divided: one step's joules, its time, and the base power of the GPU; ``base_off_w`` is plus or minus."""

    device_idx: int
    steps: int
    energy_j: float
    uncertainty_j: float
    duration_s: float
    base_w: float | None
    base_off_w: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Shared:
    """The joules of one key, plus or minus."""

    key: Key
    energy_j: float
    uncertainty_j: float


@dataclass(frozen=True)
class Weights:
    """What drives the GPU how hard: watts, and between what bounds, of each column of work.

    Columns are those of :func:`power_columns.columns_of`. ``measured_frac`` and ``modelled_frac`` are
    shares of the time.
    """

    watts: F64
    low_w: F64
    high_w: F64
    measured_frac: float
    modelled_frac: float


def step_energy(rank: Rank, device_idx: int | None = None) -> StepEnergy | None:
    """Return the joules of one step; None where there was no energy pass, or its joules are not known.

    Args:
        rank: One process.
        device_idx: torch's index; None takes the GPU that used most.
    """
    passes = [(one.energy_j, one) for one in rank.manifest.energy or () if one.energy_j is not None]
    mine = [(energy_j, one) for energy_j, one in passes if device_idx is None or one.device_idx == device_idx]
    if not mine:
        return None
    energy_j, found = max(mine, key=lambda pair: pair[0])
    count = found.last_step - found.first_step + 1
    base_w, off_w = _base(found)
    return StepEnergy(
        device_idx=found.device_idx,
        steps=count,
        energy_j=energy_j / count,
        uncertainty_j=(found.uncertainty_j or 0.0) / count,
        duration_s=(found.end_ns - found.start_ns) / 1e9 / count,
        base_w=base_w,
        base_off_w=off_w,
        notes=found.notes,
    )


def _base(found: PassEnergy) -> tuple[float | None, float]:
    """Return the base power and how far it may be off: the GPU idle before and after, else before the program."""
    seen = [base_w for base_w in (found.base_before_w, found.base_after_w) if base_w is not None]
    if seen:
        return sum(seen) / len(seen), (max(seen) - min(seen)) / 2
    return (None, 0.0) if found.idle_w is None else (found.idle_w, 0.25 * found.idle_w)


def break_down_energy(rank: Rank, device_idx: int | None = None) -> EnergyBreakdown | None:
    """Return where one step's joules went, by module and phase; None where there was no energy pass.

    Args:
        rank: One process.
        device_idx: torch's index; None takes the GPU that used most.
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
    )


def share_energy(rank: Rank, step: StepEnergy, by: Sequence[str], depth: int | None = None) -> tuple[Shared, ...]:
    """Return one step's joules by any of module, phase, scope, kernel, operator and kind, largest first.

    They sum to the step's. What is idle has the phase ``idle``, or that as its only word, and no other words.
    """
    work = read_work(rank, step.device_idx)
    idle_key = _idle_key(by)
    if work is None:
        return (Shared(("",) * len(by), step.energy_j, step.uncertainty_j),)
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


def work_by_class(rank: Rank, work: Work, by: Sequence[str], depth: int | None = None) -> tuple[list[Key], F64]:
    """Return keys of ``by``, and the seconds of one step that each column of :class:`Weights` took in each."""
    names, paths = names_of(rank), module_paths(rank)
    words: dict[str, tuple[NDArray[Any], Callable[[Any], str]]] = {
        "module": (work.module_id, lambda one: fold_path(paths.get(one, ""), depth)),
        "phase": (work.phase, str),
        "kernel": (work.name_id, lambda one: names.get(one, "")),
        "operator": (work.operator_id, lambda one: names.get(one, "")),
        "kind": (work.kind, str),
        "scope": (work.scope_id, lambda one: fold_scope(names.get(one, ""), depth)),
    }
    first, which = alike(*(words[word][0] for word in by))
    texts = [[words[word][1](one) for one in words[word][0][first].tolist()] for word in by]
    places: dict[Key, int] = {}
    place = np.array([places.setdefault(key, len(places)) for key in zip(*texts, strict=True)], dtype=np.int64)
    table, model = table_of(rank), model_of(rank)
    sums = np.zeros((len(places), column_count(table, model)), dtype=np.float64)
    np.add.at(sums, (place[which], columns_of(work, names, table, model)), work.duration_ns / 1e9 / work.steps)
    return list(places), sums


def weigh(
    durations_s: F64, busy_s: float, step: StepEnergy, table: WattTable | None, model: PowerModel | None = None
) -> Weights:
    """Return what each column of ``durations_s`` counts.

    What was measured counts its watts, all else those that FLOPs and bytes or its class tell; both are scaled to the
    step's dynamic joules, within bounds.

    Args:
        durations_s: Seconds of one step by key, and by the columns of :func:`power_columns.columns_of`.
        busy_s: Seconds of one step with something under way, overlaps once.
        step: What is divided.
        table: What was measured on this GPU.
        model: What FLOPs and bytes tell of it.
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
    """Return by what measured joules, and by what those expected of all else, are scaled to come to the dynamic ones.

    Of all that do, the pair that is nearest to 1 and 1 by how far each may be off: what was measured gives way less.
    Where there is but one of the two it cancels out.
    """
    if not measured_j or not expected_j:
        return 1.0, 1.0
    gives = (_MEASURED_OFF**2 * measured_j, _TOLD_OFF**2 * expected_j)
    short_j = dynamic_j - measured_j - expected_j
    force = short_j / (gives[0] * measured_j + gives[1] * expected_j)
    measured_scale, scale = (min(max(1 + one * force, _SCALES[0]), _SCALES[1]) for one in gives)
    return measured_scale, scale


def _known_watts(table: WattTable | None, model: PowerModel | None) -> tuple[F64, F64]:
    """Return watts and their bounds of the columns that were measured, and of those that the model tells alone."""
    types = () if table is None else table.types
    known_w = np.array([(one.watts, one.low_w, one.high_w) for one in types], dtype=np.float64).reshape(-1, 3)
    if model is None:
        return known_w, np.zeros((0, 3), dtype=np.float64)
    levels_w = model.levels_w[:, None]
    by_type = levels_w * ([1, 1, 1] if table is None else [1, table.low_frac, table.high_frac])
    return np.concatenate([known_w, by_type]), levels_w * [1, *model.bounds]


def apportion(durations_s: F64, busy_s: float, step: StepEnergy, weights: Weights) -> tuple[F64, F64, float, float]:
    """Return joules and plus or minus of each key, and both of what is idle; the joules sum to the step's.

    The base power goes to idle for what the step lasts longer than it is busy, and to the keys by their share of the
    time they take. What is left goes by time and weight. Where the base power alone is more than the step used,
    nothing is left, and it is taken as what was used.

    Args:
        durations_s: Seconds of one step by key, and by what ``weights`` tells apart.
        busy_s: Seconds of one step with something under way, overlaps once.
        step: What is divided.
        weights: How hard each drives the GPU.
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
    """Return half of what each key's share can differ by when every kind of work is anywhere within its bounds."""
    low, high = durations_s @ weights.low_w, durations_s @ weights.high_w
    most = high / np.maximum(high + (low.sum() - low), 1e-300)
    least = low / np.maximum(low + (high.sum() - high), 1e-300)
    half: F64 = (most - least) / 2
    return half


def _method(rank: Rank, step: StepEnergy, work: Work) -> str:
    """Return how the joules are shared: which share of the time was measured, and which modelled, and by whom."""
    how, table, model = METHOD if step.base_w is not None else METHOD_WITHOUT_BASE, table_of(rank), model_of(rank)
    weights = weigh(work_by_class(rank, work, ("kind",))[1], work.busy_ns / 1e9, step, table, model)
    told = []
    if table is not None and weights.measured_frac:
        told.append((weights.measured_frac, MEASURED, table.source))
    if model is not None and weights.modelled_frac:
        told.append((weights.modelled_frac, MODELLED, model.source))
    is_rest = sum(frac for frac, *_ in told) < _ALL
    if len(told) == 1 and not is_rest:
        return f"{how}{told[0][1]} of its operators ({told[0][2]})"
    parts = [f"{what} of {frac:.0%} of it ({source})" for frac, what, source in told]
    rest = [f"{ASSUMED} for the rest" if told else ASSUMED] if is_rest else []
    return how + ", ".join([*parts, *rest])


def _notes(step: StepEnergy, work: Work | None) -> list[str]:
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
