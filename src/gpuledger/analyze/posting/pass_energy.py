"""Energy of a GPU during an energy measurement: from its energy counter, or from its power if it has no counter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.energy_window import NVML_COUNTER, EnergyCounter, Tick, WindowEnergy, edge_at, measure_window
from gpuledger.model.journal.reading import Journal
from gpuledger.model.pass_facts import EnergyEdges, PassEnergy
from gpuledger.units import counted, format_ns

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

COUNTER = "NVML energy counter from tick to tick"
POWER = "power integrated over samples, no counter"

_SETTLED_NS = 150_000_000
"""Time from the last kernel until a GPU is at its idle power."""

_GAIN_FRAC = 0.05
"""Maximum gain error of a board's power sensor (Yang et al., SC'24: up to 6.2 % between boards of the same model)."""

_POWER_PERIOD_S = 0.1
"""Update period of a GPU's power value (H100, H200)."""

_STUCK_READINGS = 20
"""Number of equal power samples, 50 ms apart, above which the sensor counts as not working."""

_LATE = 3
"""A counter update that took more than this multiple of the usual sampling time counts as observed late."""

_DRIFT_C = 5
_THROTTLED_FRAC = 0.01


@dataclass(frozen=True)
class CardReadings:
    """Samples of one GPU from the energy meter. Times are Unix ns; NaN if a sensor did not answer.

    ``pids`` are the processes seen on the GPU, ``foreign`` those of them that do not belong to the program.
    """

    ticks: tuple[Tick, ...]
    t_ns: I64
    power_w: F64
    temperature_c: F64
    idle_w: float | None
    foreign: tuple[int, ...]
    counter: EnergyCounter = NVML_COUNTER


def readings_of(journal: Journal, index: int) -> CardReadings:
    """Return the samples of GPU number ``index`` in an energy meter's journal."""
    ticks, sensors, processes = (journal.tables[name] for name in ("ticks", "sensors", "process_samples"))
    mine = {name: column[ticks["device_idx"] == index].tolist() for name, column in ticks.items()}
    rows = sensors["device_idx"] == index
    instant, average = sensors["power_instant_w"][rows], sensors["power_average_w"][rows]
    temperature = sensors["temperature_c"][rows].astype(np.float64)
    uuid = journal.facts["card_uuids"][index]
    seen = {int(pid) for pid in processes["pid"][processes["device_idx"] == index].tolist()}
    rows_of_ticks = zip(mine["t_ns"], mine["energy_mj"], mine["reading_ns"], mine["throttled_ns"], strict=True)
    seen_ticks = [Tick(*row[:3], throttled_ns=None if row[3] < 0 else row[3]) for row in rows_of_ticks]
    return CardReadings(
        ticks=_exact(_ascending(seen_ticks)),
        t_ns=sensors["t_ns"][rows],
        power_w=instant if np.isfinite(instant).any() else average,
        temperature_c=np.where(temperature < 0, np.nan, temperature),
        idle_w=(journal.facts.get("idle_w") or {}).get(uuid),
        foreign=_foreign(seen, set(journal.facts.get("own_pids") or []), journal.facts.get("pids_before") or {}, uuid),
        counter=EnergyCounter.of_facts((journal.facts.get("energy_counters") or {}).get(uuid)),
    )


def _ascending(ticks: list[Tick]) -> list[Tick]:
    """Return the ticks in ascending order. Drops those out of order, which a damaged journal can contain."""
    latest = -1
    kept = []
    for tick in ticks:
        if tick.t_ns > latest:
            kept.append(tick)
            latest = tick.t_ns
    return kept


def _exact(ticks: list[Tick]) -> tuple[Tick, ...]:
    """Return the ticks without those observed late because the reader got no CPU time; all if fewer than two remain."""
    limit_ns = _LATE * float(np.median([tick.reading_ns for tick in ticks])) if ticks else 0.0
    exact = tuple(tick for tick in ticks if tick.reading_ns <= limit_ns)
    return exact if len(exact) >= 2 else tuple(ticks)


def _foreign(seen: set[int], own: set[int], before: dict[str, Any], uuid: str) -> tuple[int, ...]:
    """Return the processes on the GPU that do not belong to the program.

    In a container, the driver's process ids can differ from the container's. Then only processes that were there before
    the program are known to be foreign.
    """
    if seen & own:
        return tuple(sorted(seen - own))
    return tuple(sorted(seen & set(before.get(uuid) or [])))


def measure_pass(device_idx: int, edges: EnergyEdges, readings: CardReadings | None) -> PassEnergy:
    """Return the energy of one GPU between the recorded start and end of the measurement."""
    start_ns, end_ns, first_step, last_step = edges.start_ns, edges.end_ns, edges.first_step, edges.last_step
    assert start_ns is not None
    assert end_ns is not None
    assert first_step is not None
    assert last_step is not None
    notes: list[str] = []
    if readings is None:
        window, source = WindowEnergy(start_ns, end_ns, None, None, 0, None), "not read"
        notes.append(f"Energy was not measured: the sensors of {_name(device_idx)} could not be read.")
    elif len(readings.ticks) < 2:
        window, source = _summed(readings, start_ns, end_ns), POWER
        notes += _notes_on_summed(device_idx, readings, window)
    else:
        window, source = _counted(readings, start_ns, end_ns), COUNTER
        notes += _notes_on_counted(device_idx, readings, window)
    spans = edges.idle_ns
    before = next((_base_w(readings, span) for span in spans if span[0] < start_ns), None)
    after = next((_base_w(readings, span) for span in spans if span[0] >= start_ns), None)
    if readings is not None:
        notes += _notes_on_card(device_idx, readings, window)
    return PassEnergy(
        device_idx=device_idx,
        first_step=first_step,
        last_step=last_step,
        start_ns=start_ns,
        end_ns=end_ns,
        energy_j=window.energy_j,
        uncertainty_j=window.uncertainty_j,
        ticks=window.ticks,
        throttled_ns=window.throttled_ns,
        source=source,
        base_before_w=before,
        base_after_w=after,
        idle_w=None if readings is None else readings.idle_w,
        notes=tuple(notes),
    )


def _counted(readings: CardReadings, start_ns: int, end_ns: int) -> WindowEnergy:
    start, end = (edge_at(readings.ticks, at_ns, readings.counter) for at_ns in (start_ns, end_ns))
    if start is None or end is None:
        return WindowEnergy(start_ns, end_ns, None, None, 0, None)
    return measure_window(start, end)


def _summed(readings: CardReadings, start_ns: int, end_ns: int) -> WindowEnergy:
    """Return the energy from power samples, each valid until the next one; None if the sensor does not update.

    Source: NVML power, averaged over 25 ms of every 100 ms if the GPU has instant power. Error: the sensor's gain, and
    one sample more or less at each end.
    """
    unknown = WindowEnergy(start_ns, end_ns, None, None, 0, None)
    known = np.isfinite(readings.power_w)
    times, watts = readings.t_ns[known], readings.power_w[known]
    inside = watts[(times >= start_ns) & (times < end_ns)]
    if inside.size < 2 or _stands_still(inside):
        return unknown
    first = max(int(np.searchsorted(times, start_ns, side="right")) - 1, 0)
    times, watts = times[first:], watts[first:]
    begin = np.maximum(times, start_ns)
    begin[0] = start_ns
    until = np.minimum(np.append(times[1:], end_ns), end_ns)
    energy_j = float((watts * np.maximum(until - begin, 0)).sum()) / 1e9
    uncertainty_j = _GAIN_FRAC * energy_j + float(inside.max() - inside.min()) * _POWER_PERIOD_S
    return WindowEnergy(start_ns, end_ns, energy_j, uncertainty_j, 0, None)


def _stands_still(watts: F64) -> bool:
    return watts.size >= _STUCK_READINGS and bool((watts == watts[0]).all())


def _base_w(readings: CardReadings | None, span_ns: tuple[int, int]) -> float | None:
    """Return the mean power of the idle GPU, from its energy counter or else its power samples; None without either."""
    if readings is None:
        return None
    begin_ns, end_ns = span_ns[0] + _SETTLED_NS, span_ns[1]
    inside = [tick for tick in readings.ticks if begin_ns <= tick.t_ns <= end_ns]
    if len(inside) >= 2:
        return (inside[-1].energy_mj - inside[0].energy_mj) / 1e3 / ((inside[-1].t_ns - inside[0].t_ns) / 1e9)
    watts = readings.power_w[(readings.t_ns >= begin_ns) & (readings.t_ns <= end_ns)]
    watts = watts[np.isfinite(watts)]
    return float(np.median(watts)) if watts.size else None


def _notes_on_summed(device_idx: int, readings: CardReadings, window: WindowEnergy) -> list[str]:
    name, known = _name(device_idx), readings.power_w[np.isfinite(readings.power_w)]
    if window.energy_j is not None:
        return [f"Energy of {name} is its power integrated over the samples: it has no energy counter that changes."]
    if not known.size:
        return [f"Energy was not measured: neither energy counter nor power of {name} can be read."]
    if _stands_still(known):
        return [
            f"Energy was not measured: {name} has no energy counter that changes, and its power stays "
            f"at {known[0]:.1f} W."
        ]
    return [f"Energy was not measured: the measurement on {name} is too short to integrate its power."]


def _notes_on_counted(device_idx: int, readings: CardReadings, window: WindowEnergy) -> list[str]:
    name = _name(device_idx)
    if window.energy_j is None:
        return [
            f"The energy measurement is too short for {name}'s counter: it has {counted(window.ticks, 'update')} in "
            f"{format_ns(window.end_ns - window.start_ns)}, and two are needed."
        ]
    inside = readings.power_w[(readings.t_ns >= window.start_ns) & (readings.t_ns < window.end_ns)]
    inside = inside[np.isfinite(inside)]
    counted_w = window.energy_j / ((window.end_ns - window.start_ns) / 1e9)
    if inside.size and _stands_still(inside) and abs(inside[0] / counted_w - 1) > 2 * _GAIN_FRAC:
        return [
            f"The power sensor of {name} is stuck at {inside[0]:.1f} W, while its "
            f"energy counter shows {counted_w:.1f} W."
        ]
    return []


def _notes_on_card(device_idx: int, readings: CardReadings, window: WindowEnergy) -> list[str]:
    """Return what disturbed the measurement: power limit, temperature, other processes on the GPU."""
    name, notes = _name(device_idx), []
    length_ns = window.end_ns - window.start_ns
    if window.throttled_ns is not None and window.throttled_ns > _THROTTLED_FRAC * length_ns:
        notes.append(
            f"The power limit lowered the clock of {name} for "
            f"{format_ns(window.throttled_ns)} of the energy measurement's "
            f"{format_ns(length_ns)}."
        )
    inside = readings.temperature_c[(readings.t_ns >= window.start_ns) & (readings.t_ns < window.end_ns)]
    inside = inside[np.isfinite(inside)]
    if inside.size and inside[-1] - inside[0] > _DRIFT_C:
        notes.append(
            f"{name} grew {inside[-1] - inside[0]:.0f} °C warmer during the energy "
            "measurement, which changes its power."
        )
    if readings.foreign:
        pids = ", ".join(map(str, readings.foreign))
        notes.append(f"Another process used {name} during the energy measurement (pid {pids}). Its energy is included.")
    return notes


def _name(device_idx: int) -> str:
    return f"cuda:{device_idx}" if device_idx >= 0 else "the GPU"
