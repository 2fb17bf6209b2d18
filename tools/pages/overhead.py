"""What recording costs: step times, pauses, profiled steps, whole scripts."""

from __future__ import annotations

import statistics

from gpuledger.units import counted
from pages.blocks import block
from pages.results import Results, about, percent, read, table, when, wrap

OVERHEAD = [f"time/results/h200/overhead{name}.json" for name in ("", "_neumf")]
SHORT = "time/results/h200/short_run.json"
SHORT_ON_CPU = "time/results/cpu/short_run.json"
PARTS = "time/results/h200/recording_parts.json"
PAUSES = {
    "start of recording": ("open", {"search for live tensors and modules": "scan for live objects"}),
    "end of each recorded step": (
        "keep a step",
        {"the allocator's snapshot": "torch: snapshot", "events into columns": "events into columns"},
    ),
    "end of recording": ("close", {}),
    "start of timing": ("begin timing", {}),
    "end of timing": (
        "end timing",
        {
            "torch's profiler stops": "torch: stop the profiler",
            "its events into columns": "Kineto's events into columns",
            "its list of events": "torch: list of Kineto's events",
            "CUPTI detaches": "wait for CUPTI to detach",
        },
    ),
}
"""Pause -> the part that it is, and the larger parts within that one."""
LIVE = "watch/results/h200/live.json"
PROFILED = [f"time/results/h200/time_pass_cost{name}.json" for name in ("", "_transformers")]
PEERS = {
    "empty TorchDispatchMode": "empty `TorchDispatchMode`",
    "torch memory history, Python stacks": "torch history + stacks",
    "torch.profiler, CPU and CUDA": "torch.profiler",
    "torch.profiler, memory, shapes and stacks": "… + memory + stacks",
}


def peer_cell(found: Results) -> str:
    """Return a tool's factor; a star marks a figure of a single round."""
    return f"{found['median']:.2f}" + ("*" if found["count"] == 1 else "")


def measured_models() -> Results:
    """Return the figures of all models."""
    return {name: model for file in OVERHEAD for name, model in read(file)["models"].items()}


def where_measured() -> str:
    """Return the card, the versions and the date of the first file, and the date of the others."""
    first, *others = map(read, OVERHEAD)
    more = [f" {' and '.join(other['models'])}: {when(other)}." for other in others]
    return f"{about(first, 'time/overhead.py')}.{''.join(more)}"


@block("overhead")
def overhead() -> list[str]:
    """Return step times under recording and under PyTorch's own tools, as multiples of the unprofiled step."""
    models = measured_models()
    columns = ["model", "limited by", "unprofiled step", "recorded steps", "last recorded step", "later steps"]
    rows = []
    for name, model in models.items():
        ours = [
            f"{model['in_window']['median']:.3f}",
            f"{model['stacks_step_with_closing_pause']['median']:.2f}",
            f"{model['after_window']['median']:.3f}",
        ]
        peers = [peer_cell(model["peers"][peer]) for peer in PEERS]
        pauses = f"{model['pauses_per_window_ms']['total']:.0f} ms"
        rows.append([name, model["binds"], f"{model['bare_step_ms']:.1f} ms", *ours, *peers, pauses])
    rounds = min(model["in_window"]["count"] for model in models.values())
    peer_rounds = [model["peers"][peer]["count"] for model in models.values() for peer in PEERS]
    single = sum(count == 1 for count in peer_rounds)
    return [
        *wrap(
            where_measured(),
            "Step times from `recorded steps` on are multiples of the unprofiled step of the same process: medians of",
            f"{rounds} alternations. The columns of PyTorch's own tools, which report no modules, are medians of",
            f"up to {max(peer_rounds)} rounds, in {single} cells (*) of one.",
        ),
        "",
        *table([*columns, *PEERS.values(), "pauses"], rows, 2),
        "",
        *wrap(
            "Three steps are recorded by default, with a Python stack for each block. Where the CPU is the limit, most",
            "of their cost is that of the dispatch mode that sees the operators. The last one includes a pause.",
            "`pauses` is the total of a recording. `gpuledger run` adds its",
            "[flight recorder](docs/flight-recorder.md) to `later steps`.",
            short_runs(),
        ),
    ]


def short_runs() -> str:
    """Return the time of scripts of a few steps, from the start of the process to its end, with and without `run`."""
    results, on_cpu = read(SHORT), read(SHORT_ON_CPU)
    where = f"On a CPU ({on_cpu['environment']['processor']}, {counted(on_cpu['threads'], 'thread')}; {when(on_cpu)})"
    return (
        f"A script of {results['steps']} steps, from start to exit, and what `gpuledger run` adds (medians "
        f"of {rounds_of(results)}; {when(results, 'time/short_run.py')}). {times_of(results)} "
        f"{where}, {times_of(on_cpu)[:-1]} (medians of {rounds_of(on_cpu)})."
    )


def rounds_of(results: Results) -> str:
    """Return how many rounds the models have."""
    counts = [len(model["rounds"]) for model in results["models"].values()]
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} or {max(counts)}"


def times_of(results: Results) -> str:
    """Return each model's time without recording and what recording adds."""
    return " ".join(
        f"{name}: {model['bare_s']:.1f} s {model['more_s']:+.1f} s." for name, model in results["models"].items()
    )


@block("ranges of overhead")
def ranges_of_overhead() -> list[str]:
    """Return the range over the models of what recording costs."""
    models = measured_models().values()
    short = read(SHORT)
    live = read(LIVE)

    def span(name: str, digits: int) -> str:
        found = [model[name]["median"] for model in models]
        return f"{min(found):.{digits}f} to {max(found):.{digits}f} times"

    pauses = [model["pauses_per_window_ms"]["total"] for model in models]
    more = [model["more_s"] for model in short["models"].values()]
    count = str(len(pauses))
    rows = [
        ["recorded steps, against unprofiled steps", count, span("in_window", 3)],
        ["last recorded step, with its pause", count, span("stacks_step_with_closing_pause", 2)],
        ["steps after the recording", count, span("after_window", 3)],
        ["pauses of one recording of three steps", count, f"{min(pauses):.0f} to {max(pauses):.0f} ms"],
        [f"script of {short['steps']} steps, in total", str(len(more)), f"{min(more):+.1f} to {max(more):+.1f} s"],
        ["[live view](live.md)", str(len(live["core_share"])), f"{percent(max(live['core_share']))} of one core"],
    ]
    return [
        *wrap(where_measured()),
        *wrap(f"Scripts: {about(short, 'time/short_run.py')}. Live view: {about(live, 'watch/live_cost.py')}."),
        "",
        *table(["figure", "programs", "range"], rows, 3),
        "",
        *wrap(
            "Steps after the recording are those of `gpuledger.record`. With `gpuledger run`, the",
            "[flight recorder](flight-recorder.md) adds to them.",
        ),
    ]


@block("profiled steps")
def profiled_steps() -> list[str]:
    """Return what profiled steps cost, for each model in training and inference."""
    found = [read(name) for name in PROFILED]
    cases = {name: case for results in found for name, case in results["cases"].items()}
    names = list(dict.fromkeys(name.split("-")[0] for name in cases))
    rows = []
    for name in names:
        cells = []
        for mode in ("training", "inference"):
            way = next(case for key, case in cases.items() if key.startswith(f"{name}-{mode}"))["ways"]["time_pass"]
            first, *others = way["ratio_by_step"]
            cells += [f"{first:.2f}", ", ".join(f"{one:.2f}" for one in others), str(way["rounds"])]
        rows.append([name, *cells])
    head = ["model", "training: with operators", "kernels only", "rounds", "inference: with operators", "kernels only"]
    return [
        *(line for results in found for line in wrap(f"{about(results, 'time/time_pass_cost.py')}.")),
        *wrap("Factors are against unprofiled steps of the same process, medians of the rounds."),
        "",
        *table([*head, "rounds"], rows),
    ]


@block("live view")
def live_view() -> list[str]:
    """Return what the live view takes."""
    live = read(LIVE)
    return wrap(
        f"- The view used {percent(max(live['core_share']))} of one core beside a training, in one measurement.",
        f"Measured: {about(live, 'watch/live_cost.py')}.",
    )


@block("parts of pauses")
def parts_of_pauses() -> list[str]:
    """Return what each pause of a recording consists of, for one model."""
    results = read(PARTS)
    model = results["models"]["gpt2"]
    rows = []
    for title, (part, within) in PAUSES.items():
        parts = [f"{label} {_part_ms(model, one):.0f}" for label, one in within.items()]
        rows.append([title, f"{_part_ms(model, part):.1f} ms", ", ".join(parts) or "–"])
    return [
        *wrap(
            f"{about(results, 'time/recording_parts.py')}: {model['title']}. Each figure is the longest pause of its",
            f"kind in a recording, and the median of {len(model['rounds'])} recordings.",
        ),
        "",
        *table(["pause", "duration", "of which, in ms"], rows, right_from=3),
    ]


def _part_ms(model: Results, part: str) -> float:
    longest: list[float] = [max(one["parts_ms"][part]) for one in model["rounds"]]
    return statistics.median(longest)
