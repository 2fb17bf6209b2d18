"""Run every program of the corpus bare and recorded, and compare.

``python tests/corpus/run.py`` runs all of it in fresh processes. ``--way mixed`` takes forks of an interpreter that has
loaded torch, except for programs about hooks, exits, imports, processes and signals; ``--way forked`` forks for those,
too, which is only for a quick look. ``--repeat 20`` runs each program 20 times, for differences that are rare.
``--out`` writes the outcome. With ``--clean EARLIER``, nothing runs: it writes an earlier outcome without the temporary
folders in its texts.
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "bench" / "lib")]

from corpus_compare import differences, faults_of_program
from corpus_outcome import Outcome, Place, Zygote, run_fresh
from corpus_programs import FRESH_ONLY, KINDS, Program, find_programs

import gpuledger

WAYS = ("fresh", "mixed", "forked")
FOLDER = re.compile(r"/[^\"'\s]*/(?:corpus-[^/\s]+/place|site-packages)/")
"""The temporary folder in which a program ran, or that of installed packages."""
Run = Callable[[Program, Place, tuple[str, ...] | None], Outcome]


@dataclass(frozen=True)
class Record:
    """What became of one program with one set of options."""

    program: str
    options: str
    way: str
    status: int | None
    differences: tuple[str, ...]
    faults: tuple[str, ...]
    skipped: str | None
    bare_s: float
    recorded_s: float

    @property
    def is_equal(self) -> bool:
        """Return whether the program ran bare and recorded alike."""
        return not (self.differences or self.faults or self.skipped)


def run_program(program: Program, run: Run, *, way: str) -> list[Record]:
    """Return a record for each set of options the program is recorded with.

    What differs recorded is held against a second bare execution: the program itself may be different each time.
    """
    lacks = program.lacks()
    if lacks is not None:
        return [Record(program.name, "", way, None, (), (), f"needs {lacks}", 0.0, 0.0)]
    records = []
    with tempfile.TemporaryDirectory(prefix="corpus-") as directory:
        place = Place(Path(directory) / "place")
        began_s = time.monotonic()
        first = run(program, place, None)
        bare_s = time.monotonic() - began_s
        second: Outcome | None = None
        for options in ((), *program.also):
            began_s = time.monotonic()
            recorded = run(program, place, options)
            recorded_s = time.monotonic() - began_s
            if second is None and _is_other(program, first, recorded, still_recording=bool(options)):
                second = run(program, place, None)
            faults = without_folders(faults_of_program(program, first, second or first))
            found = without_folders(
                differences(program, first, second or first, recorded, still_recording=bool(options))
            )
            times = (round(bare_s, 2), round(recorded_s, 2))
            records.append(Record(program.name, " ".join(options), way, first.status, found, faults, None, *times))
    return records


def without_folders(lines: Iterable[str]) -> tuple[str, ...]:
    """Return lines in which the program's files have no temporary folder before them."""
    return tuple(FOLDER.sub("", line) for line in lines)


def _is_other(program: Program, bare: Outcome, recorded: Outcome, *, still_recording: bool) -> bool:
    """Return whether anything differs; only then a second bare execution has something to tell."""
    return any(differences(program, bare, bare, recorded, still_recording=still_recording))


def run_corpus(programs: Iterable[Program], *, way: str = "fresh", jobs: int = 2) -> Iterator[Record]:
    """Yield the records of programs in their order, ``jobs`` programs at a time; ``way`` is one of ``WAYS``."""
    with _zygotes(jobs if way != "fresh" else 0) as zygotes, ThreadPoolExecutor(jobs) as pool:

        def run_one(program: Program) -> list[Record]:
            if way == "fresh" or program.needs_own_process or (way == "mixed" and program.category in FRESH_ONLY):
                return run_program(program, run_fresh, way="fresh")
            zygote = zygotes.get()
            try:
                return run_program(program, zygote.run, way="forked")
            finally:
                zygotes.put(zygote)

        for records in pool.map(run_one, programs):
            yield from records


@contextmanager
def _zygotes(number: int) -> Iterator[queue.Queue[Zygote]]:
    zygotes: queue.Queue[Zygote] = queue.Queue()
    all_of_them = [Zygote() for _ in range(number)]
    for zygote in all_of_them:
        zygotes.put(zygote)
    try:
        yield zygotes
    finally:
        for zygote in all_of_them:
            zygote.close()


def _tell(record: Record) -> None:
    outcome = record.skipped or ("same" if record.is_equal else "DIFFERS" if not record.faults else "FAULTY")
    name = f"{record.program} {record.options}".strip()
    print(f"{name:60} {outcome:8} {record.bare_s:6.2f} s bare {record.recorded_s:6.2f} s recorded", flush=True)
    for line in (*record.faults, *record.differences):
        print(f"    {line}", flush=True)


def _write(out: Path, kind: str, records: list[Record]) -> None:
    from environment import describe_environment, write_results

    counted = {
        "programs": len({record.program for record in records}),
        "recordings": len(records),
        "equal": sum(record.is_equal for record in records),
        "different": sum(bool(record.differences or record.faults) for record in records),
        "skipped": sum(record.skipped is not None for record in records),
    }
    content = {"environment": describe_environment("cuda" if kind == "cuda" else "cpu"), "kind": kind, **counted}
    write_results(out, {**content, "records": [asdict(record) for record in records]})


def clean(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return an earlier outcome without temporary folders in its texts."""
    texts = ("differences", "faults")
    records = [{**one, **{name: without_folders(one[name]) for name in texts}} for one in outcome["records"]]
    return {**outcome, "records": records}


def main() -> int:
    """Return 0 where every program ran alike, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="*", default=[""], help="only programs whose category/name contains this")
    parser.add_argument("--kind", choices=sorted(KINDS), default="cpu")
    parser.add_argument("--way", choices=WAYS, default="fresh")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1, help="run each program this number of times")
    parser.add_argument("--out", type=Path, help="write the outcome as JSON")
    parser.add_argument("--clean", type=Path, metavar="EARLIER", help="clean the texts of an earlier outcome")
    given = parser.parse_args()
    if given.clean is not None:
        from environment import write_results

        write_results(given.out or given.clean, clean(json.loads(given.clean.read_text(encoding="utf-8"))))
        return 0
    print(f"recorded by {Path(gpuledger.__file__).parent}")
    programs = {one.name: one for pattern in given.pattern for one in find_programs(given.kind, pattern)}
    records = []
    for record in run_corpus([*programs.values()] * given.repeat, way=given.way, jobs=given.jobs):
        _tell(record)
        records.append(record)
    equal = sum(record.is_equal for record in records)
    skipped = sum(record.skipped is not None for record in records)
    print(f"{len(programs)} programs, {len(records)} recordings: {equal} equal, {skipped} skipped")
    if given.out is not None:
        _write(given.out, given.kind, records)
    return 0 if records and equal + skipped == len(records) else 1


if __name__ == "__main__":
    sys.exit(main())
