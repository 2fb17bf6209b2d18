"""What was measured of recordings of sharded training."""

from __future__ import annotations

import re

from pages.blocks import block
from pages.results import GIB, MIB, Results, about, files_like, percent, read, table, when, wrap

NAMES = ("4", "4_7b", "4_7b_more", "2", "2_more", "2_7b")
SHARDED = tuple(f"memory/results/h200/sharded_{name}.json" for name in NAMES)
WAITS = (*SHARDED[:1], SHARDED[3], *files_like("memory/results/h200/sharded_waits_*.json"))
"""Trainings in which one rank sleeps."""
HARDLY_NS = 1e6
"""For a rank that waits less than this in a step, the difference is given in ms."""
HOOKS = "time/results/cpu/sharded_hooks.json"
DEEPSPEED = "memory/results/h200/deepspeed_zero.json"
ESTIMATED = (
    ("estimate/results/h200/sharded_estimates_4.json", "memory/results/h200/sharded_4.json"),
    ("estimate/results/h200/sharded_estimates_4_pp.json", "memory/results/h200/sharded_4.json"),
    ("estimate/results/h200/sharded_estimates_2.json", "memory/results/h200/sharded_2.json"),
    ("estimate/results/h200/sharded_estimates_2_more.json", "memory/results/h200/sharded_2_more.json"),
)
"""Estimates, and what they are compared with."""


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


def training_table(name: str) -> list[str]:
    """Return a paragraph and a table of one file: peaks, categories and overhead in each way."""
    results = read(name)
    ways = [way for way in results["ways"].split(",") if "ranks" in results["results"].get(way, {})]
    head = ["way", "peak", "equal to torch's", "`other`", "NCCL", "unaccounted", "recorded steps", "later steps"]
    billions = {"1b": "1.3", "7b": "7"}[results["size"]]
    left = [way for way in [*results["failed"], *results["not_run"]] if way != "bare"]
    ways = [way for way in ways if way not in left]
    unfinished = [f"`{way}`" for way in left]
    later = read(SHARDED[-1])["results"]
    return [
        *wrap(
            f"{results['ranks']} × {about(results, 'memory/sharded.py')}. Llama-shaped model with {billions} billion",
            f"weights, one run of {results['steps']} steps for each way, of which {results['window']} were recorded.",
            *([f"Not finished then: {', '.join(unfinished)}."] if unfinished else []),
            *(["The last table has them."] if left and all(way in later for way in left) else []),
        ),
        "",
        *table(head, [row(way, results["results"][way]) for way in ways]),
        "",
    ]


def same_peaks() -> list[str]:
    """Return in how many pairs of runs the peaks are equal, and how large they are in the others."""
    equal, others = 0, []
    for name in SHARDED:
        for way, found in read(name)["results"].items():
            recorded = [one["peak_allocated_bytes"] for one in found["printed"]]
            for bare in [
                [one["peak_allocated_bytes"] for one in ranks] for ranks in found.get("bare", []) if ranks and recorded
            ]:
                equal += bare == recorded
                if bare != recorded:
                    others.append(f"In `{way}` they are {span(bare)} without and {span(recorded)} with it.")
    pairs = equal + len(others)
    return [f"All ranks have the same peak with and without a recording in {equal} of {pairs} pairs of runs.", *others]


def span(sizes: list[int]) -> str:
    """Return the smallest and the largest of some sizes."""
    least, most = (f"{size / GIB:.1f}" for size in (min(sizes), max(sizes)))
    return f"{most} GiB" if least == most else f"{least} to {most} GiB"


def waits() -> list[str]:
    """Return what is said first of a rank that sleeps and of one that keeps more, on the GPUs of the first table."""
    results = read(SHARDED[0])["results"]
    waiting = results["straggler"]["view"][0][1][0].partition(",")[0]
    return [
        "On the four GPUs of the first table, rank 1 sleeps 30 ms in each step of `ddp`. `show` begins with:",
        f"“{waiting}”. If rank 1 keeps an activation of 8 GiB in `fsdp`, `show` begins with:",
        f"“{'; '.join(results['imbalance']['view'][0][1])}”.",
        *first_lines(),
    ]


def first_lines() -> list[str]:
    """Return the first lines of show for the same two programs on two GPUs."""
    found = read(WAITS[-1])["results"]
    lines = [
        re.split(r"\s{2,}", found[name]["first_line"])[-1] for name in ("straggler", "imbalance")
    ]  # without labels
    return [f"On two GPUs, it begins with: “{lines[0].partition(',')[0]}”.", f"And with: “{lines[1]}”."]


def waits_by_rank() -> list[str]:
    """Return a table of the waits of each rank by the merged view, beside those between CUDA events."""
    rows = []
    for name in WAITS:
        results = read(name)
        straggler = results["results"]["straggler"]
        job = f"{results['ranks']} GPUs, {when(results)}"
        steps = str(len(straggler["waits"]["steps"]))
        for rank, viewed_ns in straggler["viewed_waits_ns"].items():
            direct_ns = straggler["direct_waits_ns"][rank]
            off_ns = viewed_ns - direct_ns
            off = f"{off_ns / 1e6:+.2f} ms" if direct_ns < HARDLY_NS else f"{off_ns / direct_ns * 100:+.1f} %"
            rows.append([job, steps, rank, f"{viewed_ns / 1e6:.2f} ms", f"{direct_ns / 1e6:.2f} ms", off])
    return [
        *wrap(
            "How long each rank waits in a step of this training: by `show`, and by CUDA events that the program",
            "records before its collectives. Each wait is a median over the profiled steps before which gpuledger did",
            "not pause the program. The goal is a difference of at most 5 %. For ranks that wait less than 1 ms, the",
            "difference is in ms.",
        ),
        "",
        *table(["job", "steps", "rank", "wait by `show`", "wait by events", "difference"], rows),
    ]


@block("sharded training")
def sharded_training() -> list[str]:
    """Return peaks, categories and overhead of sharded training in each way."""
    return [
        *wrap(
            "The last columns of each table are median step times as a multiple of those without a recording. One pair",
            "of runs for each way: other jobs import their libraries at the same time, and steps are limited by the",
            "CPU, so these ratios vary. `fsdp_offload` trains a smaller model.",
        ),
        "",
        *(line for name in SHARDED for line in training_table(name)),
        *wrap(*same_peaks()),
        "",
        *wrap(*cpu_time_of_observers()),
        "",
        *wrap(*waits()),
        "",
        *waits_by_rank(),
    ]


def cpu_time_of_observers() -> list[str]:
    """Return the CPU time that a recording adds to a step of sharded training, without the GPU's work."""
    results = read(HOOKS)
    ways = results["this"].values()
    more = [one["added_ms"] for one in ways]
    bare = [one["bare_ms"] for one in ways]
    return [
        f"On a CPU with {results['ranks']} simulated ranks, recording adds {min(more):.0f} to {max(more):.0f} ms to",
        f"steps of {min(bare):.0f} to {max(bare):.0f} ms of a narrow model, in {len(more)} ways.",
        f"Measured: {about(results, 'time/sharded_hooks.py')}.",
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


@block("DeepSpeed")
def deepspeed() -> list[str]:
    """Return the peaks of DeepSpeed's stages, with and without a recording, and their shards."""
    results = read(DEEPSPEED)
    losses = max(one["largest_difference_of_losses"] for stage in results["stages"].values() for one in stage["ranks"])
    version = results["environment"]["versions"]["deepspeed"]
    head = ["stage", "peak", "equal to torch's", "equal without a recording", "shards as expected", "unaccounted"]
    return [
        *wrap(
            f"2 × {about(results, 'memory/deepspeed_zero.py')}, DeepSpeed {version}. Llama-shaped model with 8 layers,",
            "one run of 12 steps without a recording and one recorded. Losses are of bfloat16 and differ by at most",
            f"{losses:.4f}. It was not measured whether the peaks of two runs without a recording differ.",
        ),
        "",
        *table(head, [deepspeed_row(stage, found) for stage, found in results["stages"].items()]),
    ]


def deepspeed_row(stage: str, found: Results) -> list[str]:
    """Return the cells of one stage. A category is as expected if all ranks have the bytes of their shards."""
    ranks, expected = found["ranks"], found["expected_bytes"]
    right = sum(all(one["categories_bytes"][name] == size for one in ranks) for name, size in expected.items())
    recorded = [one["recorded_peak_allocated_bytes"] for one in ranks]
    of_torch = [one["recorded_run_peak_bytes"]["allocated"] for one in ranks]
    without = [one["bare_peak_bytes"]["allocated"] for one in ranks]
    same, bare = (
        sum(a == b for a, b in zip(one, other, strict=True))
        for one, other in ((recorded, of_torch), (of_torch, without))
    )
    off = max(abs(a - b) for a, b in zip(of_torch, without, strict=True)) / MIB
    return [
        stage,
        f"{max(recorded) / GIB:.2f} GiB",
        f"{same} of {len(ranks)} ranks",
        f"{bare} of {len(ranks)} ranks" + (f", {off:.1f} MiB apart" if off else ""),
        f"{right} of {len(expected)} categories",
        f"{max(abs(one['unaccounted_bytes']) for one in ranks) / MIB:.1f} MiB",
    ]


@block("estimates of sharded training")
def estimates_of_sharded_training() -> list[str]:
    """Return the errors of estimates of sharded training, for each way on two and on four GPUs."""
    return [
        *wrap(
            "Estimates compared with PyTorch's counters, of the trainings in",
            "[Measured on four and two GPUs](ranks-accuracy.md). Each figure is the largest error",
            "of the ranks, relative to the measurement. Outside the allocator are context, libraries and NCCL. The",
            "memory of NCCL's communicators was measured on two GPUs, without these trainings, by",
            "`bench/memory/nccl_memory.py`.",
        ),
        *(line for estimated, measured in ESTIMATED for line in estimated_table(estimated, measured)),
    ]


def estimated_table(estimated: str, measured: str) -> list[str]:
    """Return a paragraph and a table of the estimates of one file, compared with the measurements of another."""
    results, truth = read(estimated), read(measured)
    head = ["way", "measured peak", "allocated", "reserved", "outside the allocator"]
    missing = [way for way in truth["ways"].split(",") if has_peaks(truth, way) and way not in results["ways"]]
    bare = [way for way in results["ways"] if not truth["results"].get(way, {}).get("printed")]
    return [
        "",
        *wrap(
            f"{results['ranks']} × {truth['card']}, torch {truth['versions']['torch']}, {when(truth)}.",
            f"Estimated without a GPU: {about(results, 'estimate/sharded_estimates.py')}.",
            f"Compared with the peak of the run without a recording: {named(bare)}." if bare else "",
            *said_of_ways(list(results["ways"]), missing),
        ),
        "",
        *table(head, [estimate_row(way, ranks) for way, ranks in results["ways"].items()]),
    ]


def said_of_ways(estimated: list[str], missing: list[str]) -> list[str]:
    """Return which ways have no estimate, or why a file has one way alone."""
    if estimated == ["pp"]:
        return [
            "Pipelines of torch 2.13 also send and receive one tensor at a time, for which NCCL connects two ranks by",
            "a communicator of their own. Those of torch 2.11 do not, and it was the measured version:",
        ]
    return [f"Without an estimate: {named(missing)}." if missing else "Every way has an estimate."]


def has_peaks(truth: Results, way: str) -> bool:
    """Return whether a way's peaks were measured, recorded or without a recording."""
    without = truth["results"].get("bare", {}).get("torch_peak_of_program_bytes", {})
    return bool(truth["results"].get(way, {}).get("printed") or without.get(way))


def named(ways: list[str]) -> str:
    """Return names of ways with commas."""
    return ", ".join(f"`{way}`" for way in ways)
