"""What was measured of compiled trainings, and the file from which ``gpuledger estimate`` takes their changes."""

from __future__ import annotations

from pages.blocks import FILES, ROOT, block
from pages.results import GIB, MIB, Results, about, percent, read, table, wrap

COMPILED = "time/results/h200/compiled.json"
BY_HAND = "time/results/h200/compiled_by_hand.json"
CHANGES = ROOT / "src" / "gpuledger" / "simulate" / "estimate" / "compiled_changes.toml"
CHANGING = ("activation", "activation_gradient", "temporary")
"""Categories of which a compiled program can keep more or less, as in ``gpuledger.simulate.estimate.fit``."""


def changes_toml() -> str:
    """Return the peaks of each training, eager and compiled."""
    results = read(COMPILED)
    machine = results["environment"]
    lines = [
        "# Peak allocated bytes of the same training, eager and compiled in the default mode, and the bytes of the",
        f"# eager peak in the categories {', '.join(CHANGING)}.",
        f"# One {machine['card']}, torch {machine['versions']['torch']}, bench/{COMPILED}.",
        "# Made by tools/make_pages.py.",
    ]
    models = results["models"]
    for name in sorted(one.partition(" ")[0] for one in models if one.endswith(" eager")):
        eager, compiled = (models[f"{name} {mode}"]["recorded"]["memory"] for mode in ("eager", "compiled"))
        changing = sum(eager["by_category_bytes"].get(category, 0) for category in CHANGING)
        lines += [
            "",
            f"[{name}]",
            f"eager_bytes = {eager['peak_allocated_bytes']:_}",
            f"compiled_bytes = {compiled['peak_allocated_bytes']:_}",
            f"eager_changing_bytes = {changing:_}",
        ]
    return "\n".join(lines) + "\n"


FILES[CHANGES] = changes_toml


@block("compiled models")
def compiled_models() -> list[str]:
    """Return peaks, shares without a module and step times of each training in each mode."""
    results = read(COMPILED)
    models = results["models"]
    exact = sum(one["peak_as_counter"] for one in models.values())
    others = " and ".join(f"{mib:+.1f} MiB ({name})" for name, mib in _differences(models))
    same = sum(one["peak_as_bare"] for one in models.values())
    return [
        *wrap(f"Measured: {about(results, 'time/compiled.py')}, one run of each."),
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
        f"× {one['steps']['inside_ratio']:.2f}",
        f"× {one['steps']['outside_ratio']:.2f}",
    ]


def _differences(models: Results) -> list[tuple[str, float]]:
    found = []
    for name, one in models.items():
        recorded, bare = one["recorded"]["program"]["peaks_bytes"][-1], one["bare"]["peaks_bytes"][-1]
        if recorded != bare:
            found.append((name, (recorded - bare) / MIB))
    return found


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
    ratios = [f"× {steps[key]:.2f}" if key in steps else "–" for key in ("inside_ratio", "outside_ratio")]
    return [name, f"{time['work_ns'] / 1e6:.1f} ms", percent(time["no_module_frac"], 3), *ratios]
