"""How many planted defects the tests find."""

from __future__ import annotations

from pages.blocks import block
from pages.results import about, percent, read, table, wrap

MUTANTS = "house/results/cpu/mutants.json"
BLIND = "house/results/cpu/mutants_blind.json"
"""Another sample, drawn once, before any of its survivors was looked at."""


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
            "The tests were written with this sample in sight. Its parts:",
        ),
        "",
        *table(["part", "defects", "found"], rows),
        "",
        *wrap(*blind_sample()),
    ]


def blind_sample() -> list[str]:
    """Return the share that the tests find of a sample that nobody had seen."""
    results = read(BLIND)
    sample, left_out = results["sample"], results["left_out"]["tests"]
    return [
        f"Of another sample, with seed {results['seed']} and not seen before, the tests find {sample['found']} of",
        f"{sample['tried']} ({percent(sample['found_frac'])}). {left_out} tests that fail on that machine without a",
        f"defect were left out. Measured: {about(results, 'house/mutants.py')}.",
    ]
