"""Puts the measured figures into README.md, from the results that the scripts in bench/ wrote.

Usage: python tools/make_results_table.py [--check]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
PEERS = {
    "torch memory history, Python stacks": "torch history + stacks",
    "torch.profiler, CPU and CUDA": "torch.profiler",
    "torch.profiler, memory, shapes and stacks": "… + memory + stacks",
}
BYTES = {"peak_allocated_bytes": "allocated", "peak_reserved_bytes": "reserved", "process_bytes": "process"}


def read(name: str) -> dict[str, Any]:
    """Return one file of results."""
    values: dict[str, Any] = json.loads((ROOT / "bench" / name).read_text(encoding="utf-8"))
    return values


def overhead_table() -> list[str]:
    """Return the table of step times, as multiples of the unprofiled step of the same process."""
    results = read("time/results/h200/overhead.json")
    columns = ["model", "unprofiled step", "limited by", "recorded steps", "last recorded step", "later steps"]
    columns += [*PEERS.values(), "pauses"]
    rows = [[*columns], ["---", "---:", "---"] + ["---:"] * (len(columns) - 3)]
    for name, model in results["models"].items():
        peers = [f"{model['peers'][peer]['median']:.2f}" for peer in PEERS]
        window, after = model["in_window"]["median"], model["after_window"]["median"]
        last = model["stacks_step_with_closing_pause"]["median"]
        pauses_ms = model["pauses_per_window_ms"]["total"]
        unprofiled = f"{model['bare_step_ms']:.1f} ms"
        ours = [f"{window:.3f}", f"{last:.2f}", f"{after:.3f}"]
        rows.append([name, unprofiled, model["binds"], *ours, *peers, f"{pauses_ms:.0f} ms"])
    return ["| " + " | ".join(row) + " |" for row in rows]


def recorded_since() -> list[str]:
    """Return what recording cost in the one model that was measured again with stacks in every recorded step."""
    results = read("time/results/h200/overhead_gpt2.json")
    model = results["models"]["gpt2"]
    window, pauses_ms = model["in_window"]["median"], model["pauses_per_window_ms"]["total"]
    return [
        f"Since then each recorded step has stacks, and is written to disk when it ends. With that ({about(results)}),",
        f"recorded steps of gpt2 took {window:.2f}, later steps {model['after_window']['median']:.3f}, "
        f"and pauses {pauses_ms:.0f} ms. Other models were not measured again.",
    ]


def short_runs() -> list[str]:
    """Return the time of scripts of a few steps, from the start of the process to its end, with and without `run`."""
    results = read("time/results/h200/short_run.json")
    rounds = min(len(model["rounds"]) for model in results["models"].values())
    times = [f"{name}: {model['bare_s']:.1f} s {model['more_s']:+.1f} s" for name, model in results["models"].items()]
    return [
        f"A script of {results['steps']} steps, from start to exit (`bench/time/short_run.py`, {about(results)}, "
        f"medians of {rounds}), and what",
        f"`gpuledger run` adds. {'. '.join(times)}.",
    ]


def about(results: dict[str, Any]) -> str:
    """Return date and commit of a measurement."""
    return f"{results['environment']['date'][:10]}, {results['environment']['commit'][:7]}"


def accuracy_table() -> list[str]:
    """Return what was compared with the GPU: each row one set of programs, its truth, median or mean, and worst."""
    sums = read("operators/results/h200/operator_pairs.json")["errors"]
    trainings = read("operators/results/h200/operator_pairs_training.json")["errors"]
    energy = read("energy/results/h200/time_energy.json")["summary"]
    blind = read("estimate/results/h200/estimate_new.json")["summary"]
    rows = [
        ["recorded peak, allocated bytes", "runs without recording", *recorded_peaks()],
        ["unaccounted memory, share of the process", "NVML", *unaccounted()],
        ["energy of a step, run again", "the first run", *of(energy, "energy_repeats_within", "median", "worst")],
        *(
            [f"estimate of {word} bytes, {blind[key]['count']} new models", "the H200", *of(blind[key], "")]
            for key, word in BYTES.items()
        ),
    ]
    for name, errors in (("inference", sums), ("training", trainings)):
        for key, way in (("busy_time", "as CUDA graph"), ("time", "eager")):
            label = f"sum of measured operators, {name}, {errors[key]['pairs']} models, {way}"
            found = errors[key]
            rows.append([label, "the whole model", f"{found['mean_frac']:.1%} (mean)", f"{found['worst_frac']:.0%}"])
    head = [["figure", "compared with", "median", "worst"], ["---"] * 4]
    return ["| " + " | ".join(row) + " |" for row in [*head, *rows]]


def of(values: dict[str, Any], name: str, *ends: str) -> list[str]:
    """Return the median and the worst of an error, as percentages."""
    found = [values["_".join(filter(None, (name, end)))] for end in ends or ("median", "worst")]
    return [f"{one:.2%}" for one in found]


def recorded_peaks() -> list[str]:
    """Return in how many models the recorded program's peak equals the unprofiled one's, and what the others show."""
    models = read("memory/results/h200/accuracy.json")["models"]
    same = [name for name, model in models.items() if is_same(model)]
    off = {name: peak_difference(model) for name, model in models.items() if name not in same}
    return [f"equal in {len(same)} of {len(models)}", ", ".join(f"{name} {one:.2%}" for name, one in off.items())]


def peak_difference(model: dict[str, Any]) -> float:
    """Return how far the recorded peak is from the nearest unprofiled run's, as a share of it."""
    recorded, runs = model["recorded_peak_allocated_bytes"], model["bare_peak_allocated_bytes"]
    return min(abs(recorded - one) / one for one in runs)


def unaccounted() -> list[str]:
    """Return the share of the process's bytes that the balance cannot explain, median and worst of the models."""
    shares = [abs(model["unaccounted_frac"]) for model in read("memory/results/h200/accuracy.json")["models"].values()]
    return [f"{statistics.median(shares):.2%}", f"{max(shares):.2%}"]


def is_same(model: dict[str, Any]) -> bool:
    """Return whether every unprofiled run and the recorded one reached the same peak."""
    return {model["recorded_peak_allocated_bytes"]} == set(model["bare_peak_allocated_bytes"])


def section() -> str:
    """Return everything between the two marks."""
    told = read("time/results/h200/overhead.json")["environment"]
    outside = f"{read('estimate/results/h200/estimate_new.json')['summary']['above_stated_frac']:.0%}"
    lines = [
        f"{told['card']}, driver {told['driver']}, torch {told['versions']['torch']}. No other GPU is included.",
        "",
        *accuracy_table(),
        "",
        f"The new models were estimated before they ran; {outside} were above the upper bound of their 95 % interval.",
        "Eager models that the CPU limits take longer than the sum of their operators.",
        "",
        "### Overhead",
        "",
        f"{told['card']}, {told['date'][:10]}, `bench/time/overhead.py`. The columns from `recorded steps` on are",
        "step times as multiples of the unprofiled step in the same process: medians of 30 alternations.",
        "PyTorch's own tools were measured in one round each, and do not report modules or categories.",
        "",
        *overhead_table(),
        "",
        "In this measurement only the last recorded step had Python stacks. It ends with a pause that is included, and",
        "`--no-stacks` leaves the stacks out. `pauses` is the total of one recording of three steps.",
        "",
        *recorded_since(),
        *short_runs(),
    ]
    return "\n".join(lines)


def main() -> int:
    """Write the section, or with ``--check`` say whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    wanted = f"{head}{BEGIN}\n{section()}\n{END}{tail}"
    if arguments.check:
        return 0 if wanted == text else 1
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
