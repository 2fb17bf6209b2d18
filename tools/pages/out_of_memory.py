"""What was measured of programs that run out of memory."""

from __future__ import annotations

from pages.blocks import block
from pages.results import about, read, table, wrap

FAILURES = "memory/results/h200/out_of_memory.json"


@block("causes of out-of-memory errors")
def causes() -> list[str]:
    """Return what `show` says first about each program that failed."""
    results = read(FAILURES)
    programs = results["programs"]
    right = sum(bool(found["right"]) for found in programs.values())
    rows = [[name.replace("_", " "), found["sentence"] or "not explained"] for name, found in programs.items()]
    return [
        *wrap(
            f"{about(results, 'memory/out_of_memory.py')}, {len(programs)} programs that fail, one run of each. The",
            f"first sentence names the planted cause in {right} of them. PyTorch's own error has the sizes of the",
            "request and of the free memory.",
        ),
        "",
        *table(["planted cause", "first sentence"], rows, right_from=2),
    ]
