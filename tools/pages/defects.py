"""How many planted defects the tests find."""

from __future__ import annotations

from pages.blocks import block
from pages.results import about, percent, read, table, wrap

MUTANTS = "house/results/cpu/mutants.json"


@block("planted defects")
def planted_defects() -> list[str]:
    """Return the share of the random defects that the tests find, by part of the core."""
    results = read(MUTANTS)
    sample, named = results["sample"], results["named_lines"]
    same = sum(bool(one["reason"]) for one in sample["survivors"])
    rows = [[name, str(found["tried"]), str(found["found"])] for name, found in sample["subjects"].items()]
    return [
        *wrap(
            f"The tests find {sample['found']} of {sample['tried']} random defects ({percent(sample['found_frac'])}).",
            f"{same} of the other {len(sample['survivors'])} change no result; the file has the reason for each.",
            f"On lines where a review had found none of its defects, they find {named['found']} of {named['tried']}.",
            f"Measured: {about(results, 'house/mutants.py')}.",
        ),
        "",
        *table(["part", "defects", "found"], rows),
    ]
