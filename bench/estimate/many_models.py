"""Follows three training steps of many widely used models on a simulated GPU, and lists those without an answer.

Needs no GPU. Libraries that are not installed are left out. Models have their usual widths and at most two layers of
each kind where a configuration allows it, because depth adds no operators. With --only, results of the other programs
in the file are kept.

Usage: python bench/estimate/many_models.py --out bench/estimate/results/cpu/many_models.json [--only TEXT]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from forks import in_a_fork
from many_programs import programs

LIMIT_S = 120


def follow_one(run: Callable[[], None]) -> dict[str, Any]:
    """Return how a program ended. Runs in a process of its own."""
    from gpuledger.simulate.catalogue import find_card
    from gpuledger.simulate.estimate.follow import follow
    from gpuledger.simulate.estimate.run import Order

    order = Order(("train.py",), find_card("a100-80gb"))
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(sys.stderr):
        given = {"card": order.card.key, "steps": 3, "settings": asdict(order.settings), "run_directory": directory}
        found = follow(given, run)
    if found["ended"] == "steps" and found["allocations"]:
        return {"answer": True, "peak_reserved_bytes": found["peak_reserved_bytes"], "assumed": found["assumed"]}
    why = found.get("unmodelled") or f"{found.get('kind', found['ended'])}: {found.get('message', '')}"
    return {"answer": False, "why": why[:300], "where": found.get("place", "")}


def in_a_child(run: Callable[[], None]) -> dict[str, Any]:
    """Return how a program ended, followed in a fork that has the libraries loaded."""
    found = in_a_fork(partial(follow_one, run), LIMIT_S)
    return {"answer": False, "why": found["error"][:300]} if "error" in found else found


def chosen(only: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the programs of installed libraries with ``only`` in their name."""
    for library, name, run in programs():
        if find_spec(library) is not None and only in f"{library}:{name}":
            yield f"{library}:{name}", run


def _kept(place: Path | None) -> dict[str, Any]:
    """Return the results that were written before."""
    if place is None or not place.exists():
        return {}
    kept: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))["found"]
    return kept


def main() -> None:
    """Follow every program and write what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    from gpuledger.simulate.gpu.card import let_torchvision_import

    let_torchvision_import()
    for library in ("torchvision", "transformers", "timm"):
        if find_spec(library) is not None:
            __import__(library)
    found = _kept(options.out) if options.only else {}
    for name, run in chosen(options.only):
        started_s = time.monotonic()
        found[name] = {**in_a_child(partial(run)), "seconds": round(time.monotonic() - started_s, 1)}
        print(name, json.dumps(found[name]), flush=True)
    answered = sum(one["answer"] for one in found.values())
    result = {"environment": describe_environment("cpu"), "programs": len(found), "answered": answered, "found": found}
    print(f"{answered} of {len(found)} programs have an answer")
    if options.out is not None:
        write_results(options.out, result)


if __name__ == "__main__":
    main()
