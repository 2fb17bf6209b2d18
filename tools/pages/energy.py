"""What was measured of energy and of the timing measurement."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pages.blocks import block
from pages.results import Results, about, middle, percent, read, table, when, worst, wrap

PASSES = "energy/results/h200/time_energy.json"
ZEUS = "energy/results/h200/time_energy_zeus.json"
HALVES = "energy/results/h200/time_energy_halves.json"
EDGES = ("energy/results/h200/energy_edges.json", "energy/results/h200/energy_edges_later.json")
RANDOM = tuple(f"energy/results/h200/energy_random_windows{name}.json" for name in ("", "_2"))
CLASSES = "energy/results/h200/energy_classes.json"
OVERLAPPING = "time/results/h200/overlapping_kernels.json"
MIXTURES = "energy/results/h200/layer_mixtures.json"
WANTED_COVERAGE = 0.9
"""Share of the layers that should be within the stated uncertainty."""
WINDOWS = "operators/results/h200/operator_window.json"
SHORT = "energy/results/h200/short_programs.json"
AFTER = "time/results/h200/after_timing.json"


def repeats(name: str) -> list[float]:
    """Return how far apart two recordings of the same program were, for each model in training and inference."""
    return [mode[name] for model in read(PASSES)["models"].values() for mode in model.values()]


@block("energy of steps")
def energy_of_steps() -> list[str]:
    """Return how far energy and kernel time of two recordings are apart, and the comparison with Zeus."""
    joules, kernels = repeats("energy_repeats_within"), repeats("kernels_repeat_within")
    four = ", ".join(percent(value) for value in sorted(joules, reverse=True)[:4])
    zeus = [off for name in (PASSES, ZEUS) for off in read(name)["zeus"]["off"]]
    told = read(PASSES)["summary"]
    after = read(AFTER)
    timed = [one["timing"] for one in after["models"].values()]
    farthest = max(timed, key=lambda one: abs(one["slowdown"] - 1))
    certain = sum(abs(one["slowdown"] - 1) + one["half_interval"] <= after["target"] for one in timed)
    possible = sum(abs(one["slowdown"] - 1) <= one["half_interval"] for one in timed)
    rows = [
        ["energy of a step, two runs", str(len(joules)), f"{percent(middle(joules))} apart", f"{four} (four worst)"],
        ["kernel time, two runs", str(len(kernels)), f"{percent(middle(kernels), 2)} apart", percent(worst(kernels))],
        [
            "energy of 10 s, against Zeus",
            str(len(zeus)),
            f"{statistics.median(zeus):+.2%}".replace("%", " %"),
            f"{max(zeus):+.2%}".replace("%", " %"),
        ],
        [
            "profiled steps, against unprofiled steps",
            str(2 * len(joules)),
            f"{told['timed_step_against_bare_median']:.2f} times",
            f"{told['timed_step_against_bare_worst']:.1f} times",
        ],
        [
            "steps after the timing measurement, against steps before it",
            str(len(timed)),
            f"{statistics.median(one['slowdown'] for one in timed):.3f} times",
            f"{farthest['slowdown']:.3f} ± {farthest['half_interval']:.3f} times",
        ],
    ]
    same_sign = all(off > 0 for off in zeus)
    assert same_sign, "the text below says that all differences have one sign"
    return [
        *wrap(f"{about(read(PASSES), 'energy/time_energy.py')}. The host was shared with other work."),
        *wrap(
            f"The last row: {about(after, 'time/after_timing.py')}.",
            "Other work on the host also changes the times of steps.",
            f"1 is within the 95 % interval of {possible} of {len(timed)} models. The whole interval is within",
            f"{percent(after['target'])} of it for {certain}.",
        ),
        "",
        *table(["figure", "n", "median", "worst"], rows, right_from=4),
        "",
        *wrap(
            "Zeus reads the same energy counter, so this row shows consistency, not accuracy. All differences have one",
            "sign, because the measured time encloses that of Zeus.",
        ),
    ]


def burst_lines(results: Results) -> str:
    """Return how the energies of bursts compare with their stated uncertainty."""
    rows = results["rows"]
    inside = sum(abs(row["off_j"]) <= row["stated_j"] for row in rows)
    below = sum(row["off_j"] < 0 for row in rows)
    offs = [row["off_j"] / row["burst_j"] for row in rows]
    stated = statistics.median(row["stated_j"] / row["burst_j"] for row in rows)
    return (
        f"{len(rows)} bursts: {statistics.median(offs):+.1%} (median), {min(offs):+.1%} (worst), with a stated "
        f"uncertainty of ±{stated:.1%}; {inside} were within it, and {below} were too low"
    ).replace("%", " %")


@block("energy of short programs")
def energy_of_short_programs() -> list[str]:
    """Return whether programs of about a second have joules, and how far they are from those of long runs."""
    results = read(SHORT)
    rows = []
    for name, model in results["models"].items():
        long, (short,) = model["long"], model["short"]
        off = [f"{short[key]:+.1%}".replace("%", " %") for key in ("off_frac", "power_off_frac")]
        within = [
            f"{one['step_energy_j']:.2f} J ± {percent(one['uncertainty_j'] / one['step_energy_j'])}"
            for one in (short, long)
        ]
        rows.append([name, str(short["program_steps"]), str(short["steps"]), *within, *off])
    head = ["model", "steps", "measured steps", "J a step", f"in {results['long_s']:.0f} s", "energy", "power"]
    return [
        *wrap(
            "Trainings of as many steps as take one second, under `gpuledger run` with default options, beside one of",
            f"{results['long_s']:.0f} s. One run of each. {about(results, 'energy/short_programs.py')}.",
            "The last columns are the difference from the long run. The host was shared: steps that wait for it take",
            "longer, at less power.",
        ),
        "",
        *table(head, rows),
    ]


@block("energy of bursts")
def energy_of_bursts() -> list[str]:
    """Return whether windows around short bursts have the energy that the bursts took."""
    return [
        *wrap("Bursts of one second between idle times, measured with [`watch`](watch.md):"),
        "",
        *(line for name in EDGES for line in wrap(f"- {about(read(name))}, {burst_lines(read(name))}.")),
    ]


@block("energy of random windows")
def energy_of_random_windows() -> list[str]:
    """Return whether the stated uncertainty of windows around random bursts holds their energy."""
    first, second = map(read, RANDOM)
    return [
        *wrap("Since then, windows correct for a change of power at their ends.", *random_windows(first)),
        "",
        *wrap("On two GPUs at once, each window has the energy of both.", *random_windows(second)),
    ]


def random_windows(results: Results) -> list[str]:
    """Return how far the windows of one file are off, and how many hold the energy."""
    rows = results["rows"]
    held = sum(abs(row["off_j"]) <= row["stated_j"] for row in rows)
    offs = [row["off_j"] / row["truth_j"] for row in rows]
    lengths_s = [row["seconds"] for row in rows]
    stated = statistics.median(row["stated_j"] / row["truth_j"] for row in rows)
    factors, narrower = narrower_windows(rows)
    median, worst_off = (f"{off:+.1%}".replace("%", " %") for off in (statistics.median(offs), max(offs, key=abs)))
    return [
        f"{len(rows)} windows of {min(lengths_s):.1f} to {max(lengths_s):.1f} s around random patterns of bursts:",
        f"{median} (median), {worst_off} (worst), with a stated uncertainty of ±{percent(stated)} (median).",
        f"{held} of {len(rows)} were within it, so it is a bound and wider than a 90 % interval. Multiplied by what",
        f"holds 90 % of the other patterns (×{min(factors):.2f} to {max(factors):.2f}), it contains {narrower}.",
        f"Measured on {results['gpus']} × {about(results, 'energy/energy_random_windows.py')}.",
    ]


def narrower_windows(rows: Sequence[Results]) -> tuple[list[float], int]:
    """Return the factors of the stated uncertainty that contain 90 % of the other patterns, and how many they hold.

    The repetitions of a pattern have the same truth.
    """
    factors, held = [], 0
    for truth_j in dict.fromkeys(row["truth_j"] for row in rows):
        others = sorted(abs(row["off_j"]) / row["stated_j"] for row in rows if row["truth_j"] != truth_j)
        factors.append(others[math.ceil((len(others) + 1) * 0.9) - 1])
        own = [row for row in rows if row["truth_j"] == truth_j]
        held += sum(abs(row["off_j"]) <= factors[-1] * row["stated_j"] for row in own)
    return factors, held


@block("energy of layers")
def energy_of_layers() -> list[str]:
    """Return what the energy of layers was compared with."""
    compared = [one["off"] for name in (PASSES, HALVES) for one in read(name)["halves"]["compared"].values()]
    classes = read(CLASSES)
    off = classes["off_by_time"]
    halves = wrap(
        f"One synthetic model has two halves that were also measured alone. In {len(compared)} comparisons they were",
        f"{percent(middle(compared))} (median) and {percent(worst(compared))} (worst) off.",
        f"Measured: {about(read(HALVES), 'energy/time_energy.py')}.",
        "The form of the power model was chosen with this model in sight, so this is not an independent test.",
        f"For a type of operator outside the fit, its power is {percent(off['flops_and_bytes'])} off, and",
        f"{percent(off['assumed_weights'])} with the assumed weights. These are means of {classes['types']} types with",
        f"{classes['records']} records of an {classes['measured_on']}: {when(classes, 'energy/energy_classes.py')}.",
    )
    return [*halves, "", *unlike_layers()]


def unlike_layers() -> list[str]:
    """Return how far layers in mixtures of unlike blocks are from the same blocks alone."""
    results = read(MIXTURES)
    found, count = results["summary"], len(results["mixtures"])
    titles = {"all": "all layers", **{name: name for name in found if name not in ("all", *results["alone"])}}
    titles |= {name: f"`{name}`" for name in results["alone"]}
    rows = [
        [
            title,
            str(found[name]["n"]),
            percent(found[name]["median_off"]),
            percent(found[name]["worst_off"]),
            percent(found[name]["covered_frac"], 0),
        ]
        for name, title in titles.items()
    ]
    low = [title for name, title in titles.items() if found[name]["covered_frac"] < WANTED_COVERAGE]
    few = f", in these rows fewer than {percent(WANTED_COVERAGE, 0)}: {', '.join(low)}" if low else ""
    return [
        *wrap(
            f"{count} random mixtures of {len(results['alone'])} unlike layers, which were also measured alone. In",
            f"{sum(not one['rests'] for one in results['mixtures'])} of them the power limit lowers the clock. The",
            "errors are large. They include what the measurement of a layer alone is off, which has short bursts and",
            f"rests. {percent(found['all']['covered_frac'], 0)} of the layers are within the stated uncertainty{few}.",
            f"Measured: {about(results, 'energy/layer_mixtures.py')}.",
        ),
        "",
        *table(["layers", "n", "median error", "worst", "within ±"], rows, right_from=1),
    ]


@block("energy by window length")
def energy_by_window_length() -> list[str]:
    """Return the error of windows of some lengths, read in three ways."""
    results = read(WINDOWS)
    ways = {"on ticks": "aligned", "plain": "plain", "mean of polled power": "polled"}
    rows = []
    for length_s, found in results["lengths"].items():
        cells = [
            f"{percent(found[way]['median_frac'], 2)}, {percent(found[way]['worst_frac'])}" for way in ways.values()
        ]
        rows.append([f"{float(length_s):g} s", str(found["aligned"]["count"]), *cells])
    return [
        *wrap(f"{about(results, 'operators/operator_window.py')}, load of {results['truth_w']:.0f} W."),
        "",
        *table(["length", "windows", *ways], rows, right_from=5),
    ]


@block("overlapping kernels")
def overlapping_kernels() -> list[str]:
    """Return the busy time of a step with kernels on several streams, beside their sum, in two recordings."""
    results = read(OVERLAPPING)
    ours, others = results["gpuledger"], results["torch_profiler"]
    return wrap(
        f"Kernels can overlap. In a speech encoder with {len(ours['streams'])} streams, a step is busy for",
        f"{ours['busy_ms']:.2f} ms, and its kernels take {ours['sum_ms']:.2f} ms in sum. With `torch.profiler` alone,",
        f"these are {others['busy_ms']:.2f} ms and {others['sum_ms']:.2f} ms.",
        f"Measured: {about(results, 'time/overlapping_kernels.py')}.",
    )
