"""Options and time limit of scripts that measure one program or model after the other."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from pathlib import Path


def out_and_only(description: str | None, kind: str, *, grades: bool = False) -> argparse.Namespace:
    """Return the options ``--out FILE`` and ``--only NAME`` of the command line; ``kind`` says what is named.

    If answers are graded, there are also ``--grade-again``, and ``--after`` a number of steps.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help=f"name of one {kind}")
    if grades:
        parser.add_argument("--grade-again", action="store_true", help="run nothing, and grade lines in --out again")
        parser.add_argument("--after", type=int, metavar="STEPS", help="healthy steps before a failure (default 18)")
    return parser.parse_args()


def names_in_time(names: Iterable[str], only: str, limit_s: float) -> Iterator[str]:
    """Yield the names, or ``only`` one of them; none after ``limit_s`` seconds."""
    until_s = time.monotonic() + limit_s
    for name in names:
        if only in ("", name) and time.monotonic() <= until_s:
            yield name
