"""Runs the CUDA programs of the corpus bare and recorded, and writes what is equal and what differs.

Each program of tests/corpus/cuda_programs runs bare and recorded, once with default options and once with each set that
its header names, and bare again where that differs. The runner is the corpus's own (tests/corpus/run.py). Several
programs run at a time: what is compared, the peaks of the caching allocator included, is of one process and does not
depend on how long things take.
Exits with 1 where anything differs.

Usage: python bench/harm/corpus_cuda.py --out bench/harm/results/h200/corpus_cuda.json [--jobs 10] [PATTERN ...]
       python bench/harm/corpus_cuda.py --out FILE --recount EARLIER
           # counts of an earlier table, without running anything
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment, write_results

sys.path.insert(0, str(ROOT / "tests" / "corpus"))

from corpus_outcome import Outcome, Place, run_fresh
from corpus_programs import Program, find_programs
from run import Record, run_program

JOBS = 10
"""Programs at a time on 16 cores; a process of CUDA has more threads than one."""

LONGEST_FIRST = ("compile",)
"""Categories that begin first, so that none of their programs is the last to end."""

NOT_RESULTS = ("process", "python", "torch", "cuda")
"""What a report holds beside weights, gradients, random states and the program's own figures."""

PEAKS = {"peak_allocated_bytes": "allocated_bytes.all.peak", "peak_reserved_bytes": "reserved_bytes.all.peak"}


class Keeper:
    """Runs programs as the runner does, and keeps how each execution ended.

    The runner executes a program bare for the second time only where it differs recorded.
    """

    def __init__(self) -> None:
        self.bare: list[Outcome] = []
        self.recorded: list[Outcome] = []

    def run(self, program: Program, place: Place, options: tuple[str, ...] | None) -> Outcome:
        """Return the outcome in a process of its own."""
        outcome = run_fresh(program, place, options)
        (self.bare if options is None else self.recorded).append(outcome)
        return outcome


def run_one(program: Program) -> list[dict[str, Any]]:
    """Return a row of the table for each set of options that a program is recorded with."""
    keeper = Keeper()
    records = run_program(program, keeper.run, way="fresh")
    if not keeper.bare:
        return [{"program": record.program, "skipped": record.skipped} for record in records]
    return [describe(*pair, keeper.bare) for pair in zip(records, keeper.recorded, strict=True)]


def describe(record: Record, recorded: Outcome, bare: list[Outcome]) -> dict[str, Any]:
    """Return one row: what is equal bare and recorded, the peaks of every execution, and all that differs.

    Source: peaks are the caching allocator's own counters, read by the program at its end; None where the program ends
    without a report, or has an allocator that does not count.
    """
    row: dict[str, Any] = {
        "program": record.program,
        "options": record.options,
        "equal": record.is_equal,
        "status": {"bare": bare[0].status, "recorded": recorded.status},
        "stdout_equal": not _any_begins(record.differences, "stdout"),
        "stderr_equal": not _any_begins(record.differences, "stderr"),
        "results_equal": not any(map(_is_of_results, record.differences)) if bare[0].reports else None,
    }
    for name, counter in PEAKS.items():
        row[name] = {"bare": [_peak(one, counter) for one in bare], "recorded": _peak(recorded, counter)}
        row[f"{name}_equal"] = None if row[name]["recorded"] is None else row[name]["recorded"] in row[name]["bare"]
    return {
        **row,
        "differences": list(record.differences),
        "faults": list(record.faults),
        "bare_s": record.bare_s,
        "recorded_s": record.recorded_s,
    }


def _any_begins(lines: Iterable[str], word: str) -> bool:
    return any(line.startswith(word) for line in lines)


def _is_of_results(difference: str) -> bool:
    """Return whether a difference is one of what a program computed, such as ``end.weights: … bare, … recorded``."""
    place = difference.partition(":")[0].split(".")
    return len(place) > 1 and (place[1] not in NOT_RESULTS or place[1:3] == ["cuda", "random"])


def _peak(outcome: Outcome, counter: str) -> int | None:
    """Return the highest value of a counter in a program's reports, over all devices; None where none has it."""
    cards = [card for state in outcome.reports.values() for card in state.get("cuda", {}).get("allocators", ())]
    return max((card[counter] for card in cards if counter in card), default=None)


def count(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return of how many rows what can be said."""
    ran = [row for row in rows if "skipped" not in row]
    columns = ("equal", "stdout_equal", "stderr_equal", "results_equal", *(f"{name}_equal" for name in PEAKS))
    return {
        "programs": len({row["program"] for row in rows}),
        "recordings": len(ran),
        "skipped": len(rows) - len(ran),
        "status_equal": sum(row["status"]["bare"] == row["status"]["recorded"] for row in ran),
        **{name: sum(row[name] is True for row in ran) for name in columns},
        **{f"{name.removesuffix('equal')}different": sum(row[name] is False for row in ran) for name in columns},
        "faulty": sum(bool(row["faults"]) for row in ran),
    }


def run_all(programs: Iterable[Program], jobs: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of all programs, ``jobs`` programs at a time."""
    ordered = sorted(programs, key=lambda program: (program.category not in LONGEST_FIRST, program.name))
    with ThreadPoolExecutor(jobs) as pool:
        begun = {pool.submit(run_one, program): program for program in ordered}
        for ended in as_completed(begun):
            error = ended.exception()
            # One program that the runner cannot judge is a row like any other: the rest of a lease is not lost with it.
            yield from ended.result() if error is None else [failed(begun[ended], error)]


def failed(program: Program, error: BaseException) -> dict[str, Any]:
    """Return the row of a program with which the runner itself failed."""
    unknown = dict.fromkeys(("stdout_equal", "stderr_equal", "results_equal", *(f"{name}_equal" for name in PEAKS)))
    faults = [f"the runner failed: {type(error).__name__}: {error}"]
    row = {"program": program.name, "options": "", "equal": False, "status": {"bare": None, "recorded": None}}
    return {**row, **unknown, "differences": [], "faults": faults, "bare_s": 0.0, "recorded_s": 0.0}


def tell(row: dict[str, Any]) -> None:
    """Print a row: one line, and one for each difference."""
    if "skipped" in row:
        print(f"{row['program']:60} skipped: {row['skipped']}", flush=True)
        return
    outcome = "same" if row["equal"] else "FAULTY" if row["faults"] else "DIFFERS"
    name = f"{row['program']} {row['options']}".strip()
    print(f"{name:60} {outcome:8} {row['bare_s']:6.2f} s bare {row['recorded_s']:6.2f} s recorded", flush=True)
    for line in (*row["faults"], *row["differences"]):
        print(f"    {line}", flush=True)


def recount(table: dict[str, Any]) -> dict[str, Any]:
    """Return an earlier table with its counts made again from the differences in its rows."""
    rows = [
        row
        if row.get("results_equal") is None
        else {**row, "results_equal": not any(map(_is_of_results, row["differences"]))}
        for row in table["rows"]
    ]
    return {**table, **count(rows), "rows": rows}


def main() -> int:
    """Return 0 where every program ran alike bare and recorded, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="*", default=[""], help="only programs whose category/name contains this")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--recount", type=Path, help="an earlier table, to be counted again")
    given = parser.parse_args()
    if given.recount is not None:
        write_results(given.out, recount(json.loads(given.recount.read_text())))
        return 0
    programs = {one.name: one for pattern in given.pattern for one in find_programs("cuda", pattern)}
    began_s = time.monotonic()
    rows: list[dict[str, Any]] = []
    about = {"environment": describe_environment("cuda"), "jobs": given.jobs}
    for row in run_all(programs.values(), given.jobs):
        tell(row)
        rows.append(row)
        taken_s = round(time.monotonic() - began_s, 1)
        table = sorted(rows, key=lambda one: (one["program"], one.get("options", "")))
        # Written after each program: a script that is stopped keeps what it has.
        complete = len({one["program"] for one in rows}) == len(programs)
        write_results(given.out, {**about, "complete": complete, "wall_s": taken_s, **count(rows), "rows": table})
    counted = count(rows)
    print(f"{counted} in {time.monotonic() - began_s:.0f} s")
    return 0 if rows and counted["equal"] == counted["recordings"] else 1


if __name__ == "__main__":
    sys.exit(main())
