"""What was measured of compiled trainings, and the file from which ``gpuledger estimate`` takes its errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from pages.blocks import FILES, ROOT, block
from pages.results import GIB, MIB, Results, about, percent, read, table, wrap

COMPILED = "time/results/h200/compiled.json"
AGAIN = ("time/results/h200/compiled_again.json", "time/results/h200/compiled_more.json")
"""Some of the trainings again, at later commits."""
BY_HAND = "time/results/h200/compiled_by_hand.json"
ESTIMATED = "estimate/results/h200/compiled_peaks.json"
ERRORS = ROOT / "src" / "gpuledger" / "simulate" / "estimate" / "compiled_errors.toml"
LARGEST = 3
"""Number of modules that a row names."""
LEAST_BYTES = MIB
"""Smallest change that is shown."""
NUMBER = re.compile(r"(?<![^._])\d+(?![^.])")
"""A number in a module's path that is all of a part, or what follows the last underscore of one."""


def errors_toml() -> str:
    """Return the estimated and the measured peak of each compiled training."""
    results = read(ESTIMATED)
    machine = results["measured_on"]
    lines = [
        "# Peak allocated bytes of compiled trainings, estimated and measured, and the estimated bytes of activations,",
        "# their gradients and temporary memory.",
        f"# One {machine['card']}, torch {machine['versions']['torch']}, bench/{ESTIMATED}.",
        "# Made by tools/make_pages.py.",
    ]
    for name, one in sorted(results["trainings"].items()):
        lines += [
            "",
            f"[{name}]",
            f"estimated_bytes = {one['estimated_bytes']:_}",
            f"compiled_bytes = {one['measured_bytes']:_}",
            f"changing_bytes = {one['changing_bytes']:_}",
        ]
    return "\n".join(lines) + "\n"


FILES[ERRORS] = errors_toml


def measured(models: Results) -> Results:
    """Return the trainings that ended, by name."""
    return {name: one for name, one in models.items() if "memory" in one["recorded"]}


def without_figures(models: Results) -> str:
    """Return a sentence on the trainings that did not end; empty if all did."""
    failed = [name for name in models if name not in measured(models)]
    return f"Without figures, because the program did not end: {', '.join(failed)}." if failed else ""


@block("compiled models")
def compiled_models() -> list[str]:
    """Return peaks, shares without a module and step times of each training in each mode."""
    results = read(COMPILED)
    models = measured(results["models"])
    exact = sum(one["peak_as_counter"] for one in models.values())
    others = " and ".join(f"{mib:+.1f} MiB ({name})" for name, mib in _differences(models))
    same = sum(one.get("peak_as_bare") is True for one in models.values())
    return [
        *wrap(
            f"Measured: {about(results, 'time/compiled.py')}, one run of each.",
            without_figures(results["models"]),
        ),
        "",
        *table(
            ["training", "peak", "than eager", "bytes", "kernel time", "recorded steps", "later steps"],
            [_row(name, one) for name, one in models.items()],
        ),
        "",
        *wrap(
            f"The recorded peak equals the allocator's counter in {exact} of {len(models)} trainings, and the peak of",
            f"a run without gpuledger in {same}.",
            f"The others differ by {others}." if others else "",
        ),
        "",
        *(line for name in AGAIN for line in (*wrap(*measured_again(name)), "")),
    ]


def measured_again(name: str) -> list[str]:
    """Return what a later version shows for the trainings in a file."""
    results = read(name)
    models = measured(results["models"])
    exact = sum(one["peak_as_counter"] for one in models.values())
    memory, time = (
        max(one["recorded"][key].get("no_module_frac") or 0.0 for one in models.values()) for key in ("memory", "time")
    )
    ratios = [one["steps"]["inside_ratio"] for one in models.values() if one.get("steps")]
    return [
        f"Measured again: {', '.join(models)}. {about(results, 'time/compiled.py')}, one run of each.",
        f"The recorded peak equals the allocator's counter in {exact} of {len(models)}.",
        *(
            f"In {training}, recorded and not recorded processes differ by {difference / MIB:.1f} MiB."
            for training, one in models.items()
            if (difference := abs(max(one["bare"]["peaks_bytes"]) - max(one["recorded"]["program"]["peaks_bytes"])))
        ),
        "At most",
        f"{percent(memory, 2)} of the bytes and",
        f"{percent(time, 2)} of the measured kernel time are without a module. Recorded steps took",
        f"× {min(ratios):.2f} to {max(ratios):.2f}.",
    ]


def _row(name: str, one: Results) -> list[str]:
    memory, time = one["recorded"]["memory"], one["recorded"]["time"]
    placed = time.get("no_module_frac")
    return [
        name,
        f"{memory['peak_allocated_bytes'] / GIB:.2f} GiB",
        f"{one['than_eager']['peak_bytes'] / MIB:+,.0f} MiB" if "than_eager" in one else "",
        percent(memory["no_module_frac"], 2),
        "–" if placed is None else percent(placed, 2),
        *_step_ratios(one.get("steps") or {}),
    ]


def _step_ratios(steps: Mapping[str, float]) -> list[str]:
    return [f"× {steps[key]:.2f}" if key in steps else "–" for key in ("inside_ratio", "outside_ratio")]


def _differences(models: Results) -> list[tuple[str, float]]:
    found = []
    for name, one in models.items():
        if "peaks_bytes" not in one["bare"]:
            continue
        recorded, bare = one["recorded"]["program"]["peaks_bytes"][-1], one["bare"]["peaks_bytes"][-1]
        if recorded != bare:
            found.append((name, (recorded - bare) / MIB))
    return found


@block("what compiling changes")
def what_compiling_changes() -> list[str]:
    """Return by how much the peak of each compiled training differs from the eager one, by category and module."""
    results = read(COMPILED)
    changed = {
        name.partition(" ")[0]: one["than_eager"]
        for name, one in measured(results["models"]).items()
        if name.endswith(" compiled") and "than_eager" in one
    }
    if not changed:
        return wrap("No training was compared by module.")
    return [
        *wrap(
            f"The difference of `compiled` to `eager` in MiB. The columns have the {LARGEST} largest changes of at",
            f"least {LEAST_BYTES / MIB:.0f} MiB; a star stands for the number of a layer. {about(results)}.",
        ),
        "",
        *table(
            ["training", "peak", "by category", "by module"],
            [
                [
                    name,
                    f"{one['peak_bytes'] / MIB:+,.0f}",
                    largest_changes(one["by_category_bytes"]),
                    largest_changes(folded(one["by_module_bytes"]), code=True),
                ]
                for name, one in changed.items()
            ],
            right_from=4,
        ),
    ]


def folded(by_module: Mapping[str, int]) -> dict[str, int]:
    """Return changes by module with those of numbered layers added up: a star stands for each number."""
    found: Counter[str] = Counter()
    for path, change in by_module.items():
        found[NUMBER.sub("*", path)] += change
    return dict(found)


def largest_changes(changes: Mapping[str, int], *, code: bool = False) -> str:
    """Return the largest changes in MiB, the largest first; a dash if there is none."""
    quote = "`" if code else ""
    order = sorted(changes.items(), key=lambda item: (-abs(item[1]), item[0]))
    shown = [f"{quote}{name}{quote} {change / MIB:+,.0f}" for name, change in order if abs(change) >= LEAST_BYTES]
    return ", ".join(shown[:LARGEST]) or "–"


@block("captured by hand")
def captured_by_hand() -> list[str]:
    """Return kernel times and steps of trainings with a CUDA graph of the whole step, beside the eager ones."""
    results = read(BY_HAND)
    models = results["models"]
    exact = sum(
        one["recorded"]["memory"]["peak_allocated_bytes"] == one["recorded"]["program"]["peaks_bytes"][-1]
        for one in models.values()
    )
    header = ["training", "kernels and copies of a step", "without a module", "recorded steps", "later steps"]
    return [
        *wrap(f"Measured: {about(results, 'time/compiled.py --modes eager graph')}, one run of each."),
        "",
        *table(header, [_times_row(name, one) for name, one in models.items()]),
        "",
        *wrap(f"The recorded peak equals the allocator's counter in {exact} of {len(models)} trainings."),
    ]


def _times_row(name: str, one: Results) -> list[str]:
    time, steps = one["recorded"]["time"], one.get("steps") or {}
    return [name, f"{time['work_ns'] / 1e6:.1f} ms", percent(time["no_module_frac"], 3), *_step_ratios(steps)]
