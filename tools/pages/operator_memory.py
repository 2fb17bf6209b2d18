"""What was measured of the temporary memory of single operators in estimates."""

from __future__ import annotations

from pages.blocks import block
from pages.results import about, read, table, wrap

FILE = "estimate/results/h200/operator_memory.json"
LATER = tuple(f"estimate/results/h200/operator_memory_{name}.json" for name in ("third", "fourth"))
SETS = {
    "first": "those that the rules were made with",
    "second": "others, chosen afterwards",
    "third": "others, in more dtypes and layouts",
    "fourth": "others, of more sizes and with more options",
}
ESTIMATES = {
    ("first", "before"): "without the rules",
    ("first", "estimated"): "with the rules",
    ("second", "before"): "without the rules",
    ("second", "blind"): "with the rules, before the operators ran on the GPU",
    ("second", "estimated"): "with the rules that were added after the comparison",
    ("third", "blind"): "with these rules, before the operators ran on the GPU",
    ("third", "estimated"): "with the rules that were added after the comparison",
    ("fourth", "blind"): "with these rules, before the operators ran on the GPU",
    ("fourth", "estimated"): "with the rules that were added after the comparison",
}


@block("memory of operators")
def memory_of_operators() -> list[str]:
    """Return how many operators have the memory of the GPU in an estimate."""
    results, later, script = read(FILE), [read(name) for name in LATER], "estimate/operator_memory.py"
    sets = results["sets"] | {name: found for one in later for name, found in one["sets"].items()}
    rows = []
    for (name, column), how in ESTIMATES.items():
        found = sets[name]["summary"][column]
        share = f"{found['good'] / found['operators']:.0%}".replace("%", " %")
        rows.append([SETS[name], how, str(found["operators"]), share])
    measured, estimated = (about({"environment": results[f"{what}_on"]}, script) for what in ("measured", "estimated"))
    return [
        *wrap(
            "The share of operators with an estimate within 2 % and 0.6 MiB of the GPU. Compared are the peak beside",
            "the inputs and the memory held afterwards, forward and backward, and the workspaces that a library",
            f"keeps. An operator in two dtypes counts twice. Measured: {measured}, and the last two lists by the",
            f"commits {' and '.join(one['measured_on']['commit'][:7] for one in later)}.",
            f"Estimated without a GPU: {estimated}.",
        ),
        "",
        *table(["operators", "estimate", "n", "share"], rows),
    ]
