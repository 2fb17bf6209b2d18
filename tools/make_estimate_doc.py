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
        f"**The interval** is made of our own errors (`simulate/estimate/errors.toml`): {len(held(every))} trainings "
        f"on one {results['truth_on']['card']} with torch {versions[0]}, estimated on a machine without a GPU with "
        f"torch {versions[1]}. {_where_from(sets)} The interval is that of the program's kind: where all workspaces "
        f"follow a rule the truth was at most {excess['followed']:.1%} above the estimate, with cuDNN's layers, whose "
        f"algorithms are guessed where their shapes were not measured, {excess['guessed']:.1%}. A program of yours is "
        "another model, so each of the kind's n models counts once, by its worst training: with probability p the next "
        "one lies below the ceil((n + 1) p)-th. So few models cannot tell 95%; beyond the largest seen, "
        "the excess is taken to go on as an exponential whose mean is not known. At 95% the upper end is "
        f"{upper['followed']:.1%} and "
        f"{upper['guessed']:.1%} above the estimate, and nowhere less than half a percent. Held against the errors of "
        f"the other models alone, {summary['above_upper_left_out_frac']:.1%} of the trainings lay above their upper end"
        f"{_named(summary['above_upper_left_out'])}, {summary['above_upper_left_out_models_frac']:.1%} of the models. "
        "`--confidence` chooses p. Other GPUs borrow the H200's context and library bytes, which "
        "`gpuledger gpus` marks, and its convolutions' workspaces, which a note says."
    )
    errors = [{name: one["error"] for name, one in held(some).items()} for some in sets]
    worst = sorted(
        ((name, error) for some in errors for name, error in some.items()),
        key=lambda item: -abs(item[1]["peak_reserved_bytes"]),
    )[:6]
    farthest = ["The six farthest off:", "", "| training | allocated | reserved | process |", "|---|---|---|---|"]
    farthest += [
        f"| {name} | " + " | ".join(f"{error[key]:+.2%}" for key, _ in FIGURES) + " |" for name, error in worst
    ]
    return [*textwrap.wrap(words, 120, break_on_hyphens=False), "", *_table(errors), "", *farthest]


def _where_from(sets: list[dict[str, Any]]) -> str:
    """Return which trainings the rules were written in the light of, and which not."""
    said = (
        f"Many of the rules were written in the light of the first {len(held(sets[0]))}, and the shapes of their "
        f"convolutions are among the measured ones. The next {len(held(sets[1]))} are models that were tried "
        "afterwards: their errors prompted the measuring of convolutions, but none of their shapes has a part in what "
        "was made of it."
    )
    if len(sets) > 2:
        said += (
            f" The last {len(held(sets[2]))} are models chosen before anything was measured, and estimated before "
            "they were ever trained on the GPU, by the rules as they are; "
            f"{sets[2]['summary']['above_stated_frac']:.0%} of them lay above the upper end that was stated to them."
        )
    return said


def _table(errors: list[dict[str, Any]]) -> list[str]:
    """Return median and worst of each figure, a column for each set of trainings."""
    titles = [
        f"{title} {len(some)}" for title, some in zip(("the grid's", "the next", "the last"), errors, strict=False)
    ]
    lines = [f"| error: median, worst | {' | '.join(titles)} |", "|---|" + "---|" * len(errors)]
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
