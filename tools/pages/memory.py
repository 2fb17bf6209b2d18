"""What was measured of recorded memory."""

from __future__ import annotations

from pages.blocks import block
from pages.results import MIB, Results, about, middle, percent, read, table, wrap

RECORDED = "memory/results/h200/accuracy.json"
BALANCE = "memory/results/h200/context.json"
DROP_IN = "memory/results/cpu/dropin_defects.json"
NUMERIC = "memory/results/h200/lines_without_modules.json"
GRAPHS = "memory/results/h200/graph_pools.json"
GATE = "memory/results/h200/gate.json"


def is_same(model: Results) -> bool:
    """Return whether every unprofiled run and the recorded one reached the same peak."""
    return {model["recorded_peak_allocated_bytes"]} == set(model["bare_peak_allocated_bytes"])


def peak_difference(model: Results) -> float:
    """Return how far the recorded peak is from the nearest unprofiled run's, as a share of it."""
    recorded, runs = model["recorded_peak_allocated_bytes"], model["bare_peak_allocated_bytes"]
    return min(abs(recorded - one) / one for one in runs)


def varying_models() -> dict[str, float]:
    """Return the models whose unprofiled peaks differ from run to run, with the range in MiB."""
    models = read(RECORDED)["models"]
    peaks = {name: model["bare_peak_allocated_bytes"] for name, model in models.items()}
    return {name: (max(some) - min(some)) / MIB for name, some in peaks.items() if len(set(some)) > 1}


def unaccounted_fracs() -> list[float]:
    """Return the share of the process's bytes that the balance does not explain, of each program."""
    ranks = [rank for found in read(BALANCE)["models"].values() for rank in found]
    return [abs(rank["unaccounted_bytes"]) / rank["process_bytes"] for rank in ranks]


@block("recorded memory")
def recorded_memory() -> list[str]:
    """Return what recordings of memory were compared with."""
    models = read(RECORDED)["models"]
    checks = [model["checks"] for model in models.values()]
    same = [name for name, model in models.items() if is_same(model)]
    failed = sum(len(one["failed"]) for one in checks)
    shares = sorted(unaccounted_fracs())
    ranks = [rank for found in read(BALANCE)["models"].values() for rank in found]
    most_mib = max(abs(rank["unaccounted_bytes"]) for rank in ranks) / MIB
    rows = [
        ["comparisons with PyTorch's counters and snapshot", f"{sum(one['made'] for one in checks)}, {failed} failed"],
        ["peak equals the peak without recording", f"{len(same)} of {len(models)} models"],
        *(
            [f"{name}: its peak without recording varies by", f"{range_mib:.1f} MiB"]
            for name, range_mib in varying_models().items()
        ),
        [
            f"unaccounted memory, {len(shares)} programs",
            f"{percent(shares[len(shares) // 2], 2)} of the process (median), {percent(shares[-1], 2)} and "
            f"{most_mib:.1f} MiB (worst)",
        ],
    ]
    return [
        *wrap(f"Recordings: {about(read(RECORDED), 'memory/accuracy.py')}."),
        *wrap(f"Unaccounted memory: {about(read(BALANCE), 'memory/context.py')}."),
        "",
        *table(["figure", "result"], rows, right_from=2),
    ]


@block("numeric programs")
def numeric_programs() -> list[str]:
    """Return how much of programs without modules has no source line."""
    results = read(NUMERIC)
    programs = results["programs"].values()
    bytes_fracs = sorted(one["bytes_without_line_frac"] for one in programs)
    times = max(one["time_without_line_frac"] for one in programs)
    return wrap(
        f"{len(bytes_fracs)} programs have no modules, such as k-means and an n-body simulation.",
        f"Of the bytes at their peaks, {percent(middle(bytes_fracs), 2)} (median) and {percent(bytes_fracs[-1])}",
        f"(worst) have no source line. Of the kernel time, it is at most {percent(times)}.",
        f"Measured: {about(results, 'memory/lines_without_modules.py')}.",
    )


@block("graph pools")
def captured_graphs() -> list[str]:
    """Return whether peaks and pools of programs with CUDA graphs are those of PyTorch's counters."""
    results = read(GRAPHS)
    kinds = results["kinds"].values()
    counters = ("peak_as_counter", "pools_as_counter", "balance_as_counter")
    same = sum(all(kind[name] for name in counters) for kind in kinds)
    whole = [pool for kind in kinds for pool in kind["pools"] if pool["is_complete"]]
    held = sum(pool["held_bytes"] for pool in whole)
    without = sum(pool["without_module_bytes"] for pool in whole)
    return wrap(
        f"{len(kinds)} programs capture CUDA graphs in different ways. In {same} of them, the peak, the reserved bytes",
        "of each pool and the balance equal PyTorch's counters. If the capture was recorded,",
        f"{percent(1 - without / held)} of the bytes in the pools are on a module.",
        f"Measured: {about(results, 'memory/graph_pools.py')}.",
    )


@block("repeated peaks")
def repeated_peaks() -> list[str]:
    """Return whether peaks repeat from run to run."""
    gate = read(GATE)
    same = [
        f"{name} had the same peak in {model['repeats']} runs"
        for name, model in gate["models"].items()
        if not any(model["spread"].values())
    ]
    varying = [f"{name} had peaks that differ by {mib:.1f} MiB" for name, mib in varying_models().items()]
    return wrap(
        "Allocated bytes need no tolerance if the program makes the same requests in each run.",
        f"{', '.join(same)}. Some programs vary: {', '.join(varying)}.",
        f"Measured: {about(gate, 'memory/gate_repeatability.py')}.",
    )


@block("drop-in and older memory profiler")
def drop_in() -> list[str]:
    """Return what the older PyTorch memory profiler and the drop-in print of trainings with known sizes."""
    results = read(DROP_IN)
    rows = [
        [one["case"], f"`{one['line']}`", _range_of(one["expected_mb"]), _printed(one["old"]), _printed(one["ours"])]
        for one in results["cases"]
    ]
    return [
        *table(["case", "line", "expected", "old tool", "gpuledger"], rows, 5),
        "",
        *wrap(f"Measured: {about(results, 'memory/dropin_defects.py')}."),
    ]


def _range_of(bounds: list[int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low} to {high}"


def _printed(tool: Results) -> str:
    return "an error" if tool["error"] else ", ".join(map(str, tool["mb"]))
