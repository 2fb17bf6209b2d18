"""Reading results and writing figures: what a measurement was made on, percentages, tables and paragraphs."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from pages.blocks import ROOT
from pages.rebased import commit_of

MIB, GIB = 2**20, 2**30
WIDTH = 120

Results = dict[str, Any]


@cache
def read(name: str) -> Results:
    """Return one file of results, by its path below ``bench``."""
    values: Results = json.loads((ROOT / "bench" / name).read_text(encoding="utf-8"))
    return values


def files_like(pattern: str) -> list[str]:
    """Return the files of results whose paths below ``bench`` match a pattern, in the order of their names."""
    return sorted(place.relative_to(ROOT / "bench").as_posix() for place in (ROOT / "bench").glob(pattern))


def environment_of(results: Results) -> Results:
    """Return what a file says of the machine it was measured on."""
    for key in ("machine", "environment", "truth_on", "recorded_on", "estimated_on"):
        if "date" in results.get(key, {}):
            found: Results = results[key]
            return found
    return results


def about(results: Results, script: str = "") -> str:
    """Return GPU, driver, versions, date and commit of a measurement, and the script that made it."""
    told = environment_of(results)
    machine = [told["card"], f"driver {told['driver']}"] if told.get("card") else [told["processor"]]
    return ", ".join([*machine, f"torch {told['versions']['torch']}", when(results, script)])


def when(results: Results, script: str = "") -> str:
    """Return date and commit of a measurement, and the script that made it."""
    told = environment_of(results)
    words = [told["date"][:10]]
    if told.get("commit"):
        words.append(commit_of(told["commit"]))
    return ", ".join([*words, *([f"`bench/{script}`"] if script else [])])


def percent(frac: float, digits: int = 1) -> str:
    """Return a share as a percentage."""
    return f"{frac:.{digits}%}".replace("%", " %")


def middle(values: Iterable[float]) -> float:
    """Return the median of the sizes of errors."""
    return statistics.median(abs(value) for value in values)


def worst(values: Iterable[float]) -> float:
    """Return the largest of the sizes of errors."""
    return max(abs(value) for value in values)


def errors_in_words(errors: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a sentence for each kind of bytes, with the median and the largest size of its errors."""
    return [
        f"The error of {kind} bytes is {percent(middle(found), 2)} in the median and {percent(worst(found), 0)} at"
        " worst."
        for kind, found in errors.items()
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right_from: int = 1) -> list[str]:
    """Return a Markdown table; columns from ``right_from`` on are right-aligned."""
    aligned = ["---"] * right_from + ["---:"] * (len(head) - right_from)
    lines = [head, aligned, *rows]
    assert {len(line) for line in lines} == {len(head)}
    return ["| " + " | ".join(line) + " |" for line in lines]


def wrap(*sentences: str) -> list[str]:
    """Return a paragraph, or a point of a list, in lines."""
    text = " ".join(filter(None, sentences))
    indent = "  " if text.startswith("- ") else ""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
