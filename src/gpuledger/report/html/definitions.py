"""What each number of a report means: from the tables' own columns where there is one, from here where there is not."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.accounts import CATEGORIES, IDENTITY_CATEGORY, LIFETIME_RULES, ROUNDING
from gpuledger.model.tables import TABLES


@dataclass(frozen=True)
class Definition:
    """One term: its title, what it means, and where the number comes from."""

    title: str
    meaning: str
    source: str


_COLUMNS = {
    "peak_reserved_bytes": ("Peak reserved", "segments", "bytes", "highest sum of all segments the allocator held"),
    "allocated": ("Allocated", "counters", "allocated_bytes", ""),
    "reserved": ("Reserved", "counters", "reserved_bytes", ""),
    "active": ("Active", "counters", "active_bytes", ""),
    "used": ("Used", "samples", "used_bytes", ""),
    "driver": ("Driver", "samples", "driver_bytes", ""),
    "capacity": ("Capacity", "samples", "total_bytes", ""),
    "amount.bytes": ("Bytes", "blocks", "requested_bytes", "bytes asked for and allocated at the instant"),
    "window_energy_j": ("Energy", "windows", "energy_j", ""),
    "window_uncertainty_j": ("Plus or minus", "windows", "uncertainty_j", ""),
    "window_throttled_ns": ("Throttled", "windows", "throttled_ns", ""),
    "power": ("Power", "samples", "power_instant_w", ""),
    "power_average": ("Power", "samples", "power_average_w", ""),
    "other_processes": ("Other processes", "process_samples", "bytes", "what other processes hold on this card"),
}
"""Term -> title, table, column, and a meaning where the column's own does not do."""

_OWN = {
    "peak_allocated_bytes": Definition(
        "Peak allocated",
        "most bytes allocated at one instant of the recording; context, libraries and other processes are not in it",
        "caching allocator's history, exact",
    ),
    "step_time_ns": Definition(
        "Step time",
        "host time from one step's beginning to its end, the recorder's pauses taken off",
        "host clock; a step ends when the host returns from it, not when the card has done its work",
    ),
    "work_ns": Definition(
        "Work of a step",
        "all kernels and copies of one step summed, or on the host its outermost operators; more than busy where "
        "streams overlap; the accounts sum to it",
        "Kineto (CUPTI on a card), mean over the steps of the time pass",
    ),
    "busy_ns": Definition(
        "Busy",
        "time of a step in which at least one kernel or copy was at work on the card",
        "Kineto (CUPTI), mean over the steps of the time pass",
    ),
    "amount.time": Definition(
        "Time",
        "time of the module's own kernels in one step, or of its operators on the host, summed over its phases",
        "Kineto (CUPTI on a card), mean over the steps of the time pass",
    ),
    "amount.energy": Definition(
        "Energy",
        "the module's share of a step's joules: the base power by time, the rest by time and kind of work",
        "NVML total energy for the sum, apportioned",
    ),
    "total": Definition("With children", "what a module and all modules below it have", "sum"),
    "phase.forward": Definition("Forward", "work launched inside a module's forward", "ranges of modules, Kineto"),
    "phase.backward": Definition(
        "Backward", "work launched by autograd, with the module whose forward made the node", "sequence numbers, Kineto"
    ),
    "phase.optimizer": Definition("Optimizer", "work launched inside the optimizer's step", "step hooks, Kineto"),
    "phase.data": Definition(
        "Data",
        "work outside forward, backward and optimizer: copies of input, metrics, what comes before a model",
        "what is left of the work",
    ),
    "phase.between": Definition("Between", "work outside forward, backward and optimizer", "what is left of the work"),
    "phase.idle": Definition(
        "Idle",
        "the undisturbed step less the busy time: no kernel was at work; derived, not measured",
        "host clock of steps without a recorder, less CUPTI's busy time",
    ),
    "step_energy_j": Definition(
        "Energy of a step",
        "joules the card used in one step, idle ones included; plus or minus from the counter's ticks",
        "NVML total energy from tick to tick, shared among the steps between",
    ),
    "category.program": Definition("Program", "what the command's own processes hold on the card", "NVML process list"),
    "category.rest of the card": Definition(
        "Rest of the card", "the card's used bytes less those of the command's processes", "NVML memory info v2"
    ),
    "category.used": Definition("Used", "bytes in use on the card, whoever holds them", "NVML memory info v2"),
    "peak_bytes": Definition(
        "Peak", "most bytes in use on the card above the first reading", "NVML memory info v2, at the readings"
    ),
    "mean_active_bytes": Definition(
        "Mean while active", "bytes above the first reading, mean over the time above it", "NVML memory info v2"
    ),
    "duration_s": Definition(
        "Duration", "how long the command ran; of a log without one, the time above the first reading", "host clock"
    ),
    "energy_j": Definition(
        "Energy",
        "joules the card used while the command ran; the power summed up where the card counts no energy",
        "NVML total energy from tick to tick",
    ),
    "largest_category": Definition(
        "Largest category", "the category with most bytes at the peak", "sum over live blocks"
    ),
    "context": Definition(
        "Context", "what one process's CUDA context takes on this card", "measured apart; see the line's source"
    ),
    "library": Definition(
        "Library", "what cuBLAS, cuDNN and other libraries take outside the allocator", "measured apart"
    ),
    "free_segments": Definition(
        "Free segments", "segments without a block in use; empty_cache() would give them back", "history and addresses"
    ),
    "fragmented": Definition(
        "Fragmented", "free pieces inside segments that are in use", "reserved less free segments less active"
    ),
    "awaiting_free": Definition(
        "Awaiting free", "given back by the program while another stream may still use it", "active less allocated"
    ),
    "unused": Definition(
        "Unused", "what the card could still give: its capacity less driver and used", "NVML memory info v2"
    ),
    "remainder": Definition(
        "Remainder",
        "the card's used bytes less every line that was measured; free to be wrong, never hidden",
        "NVML's reading less all other lines",
    ),
    "notes": Definition("Notes", "what a reader of these numbers should know", "the run"),
    f"category.{ROUNDING}": Definition(
        "Rounding", "what the allocator gave beyond what was asked for", "allocated less requested, exact"
    ),
}


def definitions() -> dict[str, Definition]:
    """Return the definition of every term a report shows; categories are under ``category.NAME``."""
    found = dict(_OWN)
    for key, (title, table, column, meaning) in _COLUMNS.items():
        known = next(one for one in TABLES[table].columns if one.name == column)
        found[key] = Definition(title, meaning or known.meaning, known.source)
    found |= {f"category.{category}": _define_category(category) for category in CATEGORIES}
    return found


def _define_category(category: str) -> Definition:
    seen = [kind for kind, name in IDENTITY_CATEGORY.items() if name == category]
    ways = ["seen to be one, by its address"] if seen else []
    ways += [f"{rule.why} ({', '.join(rule.phases)})" for rule in LIFETIME_RULES if rule.category == category]
    title = category.replace("_", " ").capitalize()
    return Definition(title, "; or ".join(ways), "identity of the storage, else its lifetime across phases")
