"""What was measured of recordings of sharded training."""

from __future__ import annotations

from pages.blocks import block
from pages.results import GIB, MIB, Results, about, percent, read, table, wrap

SHARDED = "memory/results/h200/sharded.json"
ESTIMATED = "estimate/results/h200/sharded_estimates.json"


def row(way: str, found: Results) -> list[str]:
    """Return the cells of one way, with the larger figure of its ranks."""
    ranks = found["ranks"].values()
    finished = all(one["torch_peak_allocated_bytes"] for one in ranks)
    equal = sum(one["peak_is_equal"] for one in ranks)
    overhead = [found.get("overhead_in_window"), found.get("overhead_after_window")]
    return [
        f"`{way}`",
        f"{max(one['recorded_peak_allocated_bytes'] for one in ranks) / GIB:.1f} GiB",
        f"{equal} of {len(ranks)} ranks" if finished else "not finished",
        percent(max(one["other_frac"] for one in ranks)),
        f"{max(one['balance']['nccl'] for one in ranks) / MIB:.0f} MiB",
        f"{max(abs(one['unaccounted_bytes']) for one in ranks) / MIB:.1f} MiB",
        *("" if one is None else f"× {one:.2f}" for one in overhead),
    ]


def other_peaks(results: Results) -> list[str]:
    """Return the ways whose peak without a recording is another one."""
    bare = results["results"]["bare"]["torch_peak_of_program_bytes"]
    return [
        f"`{way}` ({max(bare[way]) / GIB:.1f} GiB)"
        for way in results["ways"].split(",")
        if (found := results["results"].get(way)) and bare[way]
        if bare[way] != [one["torch_peak_of_program_bytes"] for one in found["ranks"].values()]
        if abs(max(bare[way]) / max(one["recorded_peak_allocated_bytes"] for one in found["ranks"].values()) - 1) > 0.01
    ]


@block("sharded training")
def sharded_training() -> list[str]:
    """Return peaks, categories and overhead of sharded training in each way."""
    results = read(SHARDED)
    ways = [way for way in results["ways"].split(",") if results["results"].get(way)]
    head = ["way", "peak", "equal to torch's", "`other`", "NCCL", "unaccounted", "recorded steps", "later steps"]
    failed = [f"`{way}`" for way in results["failed"] if way in ways]
    stopped = [
        f"`{way}`" for way, peaks in results["results"]["bare"]["torch_peak_of_program_bytes"].items() if not peaks
    ]
    left_out = [f"`{way}`" for way in results["not_run"]]
    return [
        *wrap(
            f"{results['ranks']} × {about(results, 'memory/sharded.py')}. Llama-shaped model with 1.3 billion weights,",
            f"one run of {results['steps']} steps for each way, of which {results['window']} were recorded. The last",
            "columns are median step times as a multiple of those without a recording.",
        ),
        "",
        *table(head, [row(way, results["results"][way]) for way in ways]),
        "",
        *wrap(
            f"The time was over in {', '.join(failed)}, which trains a smaller model. Before {', '.join(left_out)}, no",
            f"time was left. Without a recording, one process trains all ways. It stopped in {', '.join(stopped)}, and",
            f"its peaks are higher in {', '.join(other_peaks(results))}.",
        ),
    ]


def estimate_row(way: str, ranks: list[Results]) -> list[str]:
    """Return the cells of one way, with the largest error of its ranks."""
    names = ("peak_allocated_bytes", "peak_reserved_bytes", "outside_bytes")
    errors = [[one["error_frac"][name] for one in ranks if name in one["error_frac"]] for name in names]
    return [
        f"`{way}`",
        f"{max(one['measured']['peak_allocated_bytes'] for one in ranks) / GIB:.1f} GiB",
        *(f"{max(found, key=abs) * 100:+.2f} %" if found else "" for found in errors),
    ]


@block("estimates of sharded training")
def estimates_of_sharded_training() -> list[str]:
    """Return the errors of estimates of sharded training, for each way."""
    results, truth = read(ESTIMATED), read(SHARDED)
    head = ["way", "measured peak", "allocated", "reserved", "outside the allocator"]
    failed = ", ".join(f"`{way}`" for way in results["failed"])
    return [
        *wrap(
            f"Estimates for {results['ranks']} ranks compared with PyTorch's counters on {results['ranks']} × H200, of",
            "the trainings in [Measured on two GPUs](ranks.md#measured-on-two-gpus). Each figure is the larger error",
            "of both ranks, relative to the measurement. Outside the allocator are context, libraries and NCCL.",
            "The assumed memory of NCCL is that of `ddp`, so that column is no independent test.",
            "`hsdp` has the peak of the run without a recording.",
            f"There is no estimate of {failed}." if failed else "Every way has an estimate.",
            f"Measured with torch {truth['versions']['torch']}. Estimated without a GPU:",
            f"{about(results, 'estimate/sharded_estimates.py')}.",
        ),
        "",
        *table(head, [estimate_row(way, ranks) for way, ranks in results["ways"].items()]),
    ]
