"""What was measured of the temporary memory of single operators in estimates."""

from __future__ import annotations

from pages.blocks import block
from pages.results import about, read, table, wrap

FILE = "estimate/results/h200/operator_memory.json"
COLUMNS = {"before": "before the rules", "blind": "rules, before the GPU was read", "estimated": "now"}
SETS = {"first": "those the rules were made with", "second": "others, chosen afterwards"}


@block("memory of operators")
def memory_of_operators() -> list[str]:
    """Return how many operators have the memory of the GPU in an estimate."""
    results, script = read(FILE), "estimate/operator_memory.py"
    rows = [
        [
            SETS[name],
            str(len(one["rows"])),
            *(
                f"{one['summary'][column]['good'] / one['summary'][column]['operators']:.0%}".replace("%", " %")
                if column in one["summary"]
                else "–"
                for column in COLUMNS
            ),
        ]
        for name, one in results["sets"].items()
    ]
    measured, estimated = (about({"environment": results[f"{what}_on"]}, script) for what in ("measured", "estimated"))
    return [
        *wrap(
            "The share of operators with an estimate within 2 % and 0.6 MiB of the GPU. Compared are the peak beside",
            "the inputs and the memory held afterwards, forward and backward, and the workspaces that a library",
            f"keeps. An operator in two dtypes counts twice. Measured: {measured}.",
            f"Estimated without a GPU: {estimated}.",
        ),
        "",
        *table(["operators", "n", *COLUMNS.values()], rows),
    ]
