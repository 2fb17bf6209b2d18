"""Puts the grid's errors into simulate/estimate/errors.toml and docs/estimate.md, from bench/estimate/estimate_grid.py.

Usage: python tools/make_estimate_doc.py [--check]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

from gpuledger.simulate.estimate.fit import excess_factor

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "estimate" / "results" / "h200" / "estimate.json"
HELD_OUT = RESULTS.with_name("estimate_held_out.json")
NEW = RESULTS.with_name("estimate_new.json")
PAGE = ROOT / "docs" / "estimate.md"
ERRORS = ROOT / "src" / "gpuledger" / "simulate" / "estimate" / "errors.toml"
FIGURES = (("peak_allocated_bytes", "allocated"), ("peak_reserved_bytes", "reserved"), ("process_bytes", "process"))
KINDS = ("followed", "guessed")
SHARE_OF_TRAININGS = LEVEL = 0.95


def held(results: dict[str, Any]) -> dict[str, Any]:
    """Return the combinations that have a truth and an estimate."""
    return {name: one for name, one in results["combinations"].items() if one["error"]}


def errors_toml(results: dict[str, Any]) -> str:
    """Return truth over estimate by kind of program, and what categories were off by."""
    card = results["truth_on"]
    lines = [
        "# Truth over estimate of a process's bytes on the GPU, for each training our estimates were held against, by",
        "# kind: those whose workspaces all follow a rule, and those with layers of cuDNN, whose algorithm is guessed.",
        f"# Truth: one {card['card']}, torch {card['versions']['torch']}; both in bench/estimate/results/h200.",
        "# Made by tools/make_estimate_doc.py.",
    ]
    for kind in KINDS:
        lines += ["", f"[{kind}]"]
        lines += [f"{name} = {ratio:.5f}" for name, ratio in ratios_of(results, kind).items()]
    lines += [
        "",
        "# Share of the allocated peak that a category was off by in at most one of twenty trainings.",
        "[by_category]",
    ]
    lines += [f"{name} = {share:.5f}" for name, share in category_shares(results).items()]
    return "\n".join(lines) + "\n"


def ratios_of(results: dict[str, Any], kind: str) -> dict[str, float]:
    """Return truth over estimate of a process's bytes, for each training of a kind."""
    return {
        name: one["truth"]["process_bytes"] / one["estimate"]["process_bytes"]
        for name, one in sorted(held(results).items())
        if one["estimate"]["kind"] == kind
    }


def category_shares(results: dict[str, Any]) -> dict[str, float]:
    """Return each category's error that only one training in twenty passes, as a share of the allocated peak."""
    sizes: dict[str, list[float]] = defaultdict(list)
    count = len(held(results))
    for one in held(results).values():
        for name, share in one["error"]["by_category"].items():
            sizes[name].append(abs(share))
    place = int(SHARE_OF_TRAININGS * count)
    return {name: sorted([0.0] * (count - len(found)) + found)[place] for name, found in sorted(sizes.items())}


def all_of(*sets: dict[str, Any]) -> dict[str, Any]:
    """Return all sets of trainings as one; versions and GPUs are the first one's."""
    return {**sets[0], "combinations": {name: one for some in sets for name, one in some["combinations"].items()}}


def paragraph(results: dict[str, Any], held_out: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the page's lines between its marks: what the interval rests on, and the errors."""
    sets = [results, held_out, *([new] if held(new) else [])]
    every = all_of(*sets)
    summary = sets[-1]["summary_of_all"]
    ratios = {kind: ratios_of(every, kind) for kind in KINDS}
    excess = {kind: max(max(found.values()) - 1, 0.0) for kind, found in ratios.items()}
    upper = {kind: excess_factor(found, LEVEL) - 1 for kind, found in ratios.items()}
    versions = results["truth_on"]["versions"]["torch"], results["estimated_on"]["versions"]["torch"]
    words = (
        f"The interval is made of the errors of {len(held(every))} trainings. They ran on one "
        f"{results['truth_on']['card']} with torch {versions[0]}, and were estimated on a machine without a GPU with "
        f"torch {versions[1]}. {_where_from(sets)} At a confidence level of 95% the upper bound is "
        f"{upper['followed']:.1%} above the estimate if all workspaces follow a rule. With cuDNN's convolutions, of "
        f"which the algorithms are predicted, it is {upper['guessed']:.1%} above. "
        f"The largest errors in these two groups were {excess['followed']:.1%} and {excess['guessed']:.1%}. "
        "If each training is left out in turn, "
        f"{summary['above_upper_left_out_frac']:.1%} of the trainings are above their upper bound"
        f"{_named(summary['above_upper_left_out'])}; that is not an independent test."
    )
    errors = [{name: one["error"] for name, one in held(some).items()} for some in sets]
    worst = sorted(
        ((name, error) for some in errors for name, error in some.items()),
        key=lambda item: -abs(item[1]["peak_reserved_bytes"]),
    )[:6]
    farthest = ["The six largest errors:", "", "| training | allocated | reserved | process |", "|---|---|---|---|"]
    farthest += [
        f"| {name} | " + " | ".join(f"{error[key]:+.2%}" for key, _ in FIGURES) + " |" for name, error in worst
    ]
    return [*textwrap.wrap(words, 120, break_on_hyphens=False), "", *_table(errors), "", *farthest]


def _where_from(sets: list[dict[str, Any]]) -> str:
    """Return which trainings the rules were written in the light of, and which not."""
    said = (
        f"The first {len(held(sets[0]))} were in sight while the rules were written. The next {len(held(sets[1]))} "
        "were tried afterwards, and convolutions were then measured because of their errors. The figures of these are "
        "from after that."
    )
    if len(sets) > 2:
        outside = sets[2]["summary"]["above_stated_frac"]
        said += (
            f" The last {len(held(sets[2]))} were chosen before the convolutions were measured, and estimated before "
            f"they ran on the GPU. Of these, {outside:.0%} were above the upper bound that was printed for them."
        )
    return said


def _table(errors: list[dict[str, Any]]) -> list[str]:
    """Return median and worst of each figure, a column for each set of trainings."""
    titles = [
        f"{title}: {len(some)}"
        for title, some in zip(("in sight", "tried afterwards", "estimated before they ran"), errors, strict=False)
    ]
    lines = [f"| error (median, worst) | {' | '.join(titles)} |", "|---|" + "---|" * len(errors)]
    for key, word in FIGURES:
        sizes = ([abs(error[key]) for error in some.values() if key in error] for some in errors)
        lines.append(f"| {word} | " + " | ".join(f"{statistics.median(s):.2%}, {max(s):.2%}" for s in sizes) + " |")
    return lines


def _named(trainings: list[str]) -> str:
    return f" ({', '.join(trainings)})" if trainings else ""


def main() -> int:
    """Return 0 where both files are up to date, or have been written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where a file is not up to date")
    check = parser.parse_args().check
    results, held_out, new = (json.loads(place.read_text(encoding="utf-8")) for place in (RESULTS, HELD_OUT, NEW))
    text = PAGE.read_text(encoding="utf-8")
    body = "\n".join(paragraph(results, held_out, new))
    page = re.sub(
        r"(<!-- interval -->\n).*?(\n<!-- /interval -->)", lambda m: m[1] + body + m[2], text, flags=re.DOTALL
    )
    stale = []
    for place, wanted in ((PAGE, page), (ERRORS, errors_toml(all_of(results, held_out, new)))):
        if place.read_text(encoding="utf-8") != wanted:
            stale.append(place)
            if not check:
                place.write_text(wanted, encoding="utf-8")
    for place in stale if check else ():
        print(f"{place.relative_to(ROOT)} is not what bench/estimate says", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
