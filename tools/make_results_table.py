"""Puts the measured figures into README.md, from the results that the scripts in bench/ wrote.

Usage: python tools/make_results_table.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- overhead -->", "<!-- /overhead -->"
PEERS = {
    "torch memory history, Python stacks": "torch history + stacks",
    "torch.profiler, CPU and CUDA": "torch.profiler",
    "torch.profiler, memory, shapes and stacks": "… + memory + stacks",
}


def read(name: str) -> dict[str, Any]:
    """Return one file of results."""
    values: dict[str, Any] = json.loads((ROOT / "bench" / name).read_text(encoding="utf-8"))
    return values


def overhead_table() -> list[str]:
    """Return the table of step times, against the bare step of the same run."""
    results = read("time/results/h200/overhead.json")
    columns = ["model", "bare step", "bound by", "in the window", "after it", *PEERS.values(), "pauses"]
    rows = [[*columns], ["---"] + ["---:"] * (len(columns) - 1)]
    for name, model in results["models"].items():
        peers = [f"× {model['peers'][peer]['median']:.2f}" for peer in PEERS]
        window, after = model["in_window"]["median"], model["after_window"]["median"]
        pauses_ms = model["pauses_per_window_ms"]["total"]
        bare = f"{model['bare_step_ms']:.1f} ms"
        rows.append(
            [name, bare, model["binds"], f"**× {window:.3f}**", f"× {after:.4f}", *peers, f"{pauses_ms:.0f} ms"]
        )
    return ["| " + " | ".join(row) + " |" for row in rows]


def slowest_stack_step() -> tuple[str, float]:
    """Return the model whose step with stacks took longest against its bare step, and how much longer."""
    models = read("time/results/h200/overhead.json")["models"]
    slowest = max(models, key=lambda name: float(models[name]["stacks_step_pauses_apart"]["median"]))
    return slowest, float(models[slowest]["stacks_step_pauses_apart"]["median"])


def accuracy_lines() -> list[str]:
    """Return what the recordings of the same models were held against."""
    results = read("memory/results/h200/accuracy.json")
    models = results["models"]
    made = sum(model["checks"]["made"] for model in models.values())
    failed = sum(len(model["checks"]["failed"]) for model in models.values())
    same = [name for name, model in models.items() if is_same(model)]
    other = max(model["other_frac"] for model in models.values())
    unaccounted = max(abs(model["unaccounted_bytes"]) for model in models.values()) / 2**20
    share = max(abs(model["unaccounted_frac"]) for model in models.values())
    spread = "".join(f"; {bare_spread(name, models[name])}" for name in models if name not in same)
    return [
        f"- {made} comparisons with the allocator's own counters and its closing snapshot, {failed} failed.",
        f"- Peak bytes recorded equal peak bytes bare in {len(same)} of {len(models)} models{spread}.",
        f"- Bytes at the peak in category `other`: at most {other:.2%}.",
        f"- Unaccounted memory, calibrated: at most {unaccounted:.1f} MiB, {share:.1%} of the process's bytes.",
    ]


def is_same(model: dict[str, Any]) -> bool:
    """Return whether every bare run and the recorded one reached the same peak."""
    return {model["recorded_peak_allocated_bytes"]} == set(model["bare_peak_allocated_bytes"])


def bare_spread(name: str, model: dict[str, Any]) -> str:
    """Return how far the peaks of bare runs of one model lie apart."""
    bare = model["bare_peak_allocated_bytes"]
    found = f"{model['recorded_peak_allocated_bytes']:,} recorded"
    return f"{name}: {len(bare)} bare runs gave {min(bare):,} to {max(bare):,} bytes by themselves, {found}"


def scale_line() -> str:
    """Return the figures for a run of a million blocks."""
    scale = read("report/results/cpu/scale.json")
    show, report = scale["show"], scale["report"]
    return (
        f"A run of {scale['blocks']:,} blocks on two cores: `show` {show['wall_s']:.1f} s and "
        f"{show['peak_rss_bytes'] / 2**20:.0f} MiB, `report` {report['wall_s']:.1f} s and "
        f"{report['peak_rss_bytes'] / 2**20:.0f} MiB, its file {report['file_bytes'] / 1e6:.1f} MB "
        "(`bench/report/scale.py`)."
    )


def section() -> str:
    """Return everything between the two marks."""
    about = read("time/results/h200/overhead.json")["environment"]
    model, ratio = slowest_stack_step()
    lines = [
        f"{about['card']}, driver {about['driver']}, torch {about['versions']['torch']}, {about['date'][:10]}.",
        "Step time against the bare step of the same process, median of 30 alternations (`bench/time/overhead.py`).",
        "The peers, in the same process, have no modules or no categories.",
        "",
        *overhead_table(),
        "",
        f"The last recorded step also keeps Python stacks and is slower, up to × {ratio:.1f} ({model});",
        "`--no-stacks` leaves them out. Pauses are those of one window of three steps, apart from the step times.",
        "",
        "The same models, recorded as a user would (`bench/memory/accuracy.py`):",
        "",
        *accuracy_lines(),
        "",
        scale_line(),
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
