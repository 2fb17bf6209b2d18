"""Compares what torch.compile does in small programs: bare, recorded, and recorded from the fourth step to the sixth.

``python bench/harm/compiled_programs.py`` writes ``bench/harm/results/cpu/compiled_programs.json``. The programs are
those of ``bench/lib/compiled_variants.py`` and ``bench/lib/compiled_settings.py``. Each runs in forks of one process
with a backend that keeps the graphs of Dynamo and AOTAutograd. What they compute must be equal, and so must the graphs,
graph breaks, compilations with their reasons, and Dynamo's counters. In a recorded program, Dynamo must ask for no
function that it does not ask for in the bare one. Exits with 1 where anything differs. A program that fails is a row
with its error. Takes about 20 minutes on one core. With names of programs, only those run, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment

sys.path.insert(0, str(ROOT / "tests" / "support"))
arguments, sys.argv[1:] = sys.argv[1:], []

import compiled_pairs as pairs
import compiled_settings
import compiled_variants as variants

from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.active import start_recording, stop_recording

RESULT = ROOT / "bench" / "harm" / "results" / "cpu" / "compiled_programs.json"
FIRST, LAST = 4, 7
"""Steps at the beginning of which the late recording begins and ends."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs; all by default")
    options = parser.parse_args(arguments)
    programs = variants.PROGRAMS | compiled_settings.PROGRAMS
    pairs.PROGRAMS = {name: lambda _, run=run: run() for name, run in programs.items()}
    names = options.names or list(pairs.PROGRAMS)
    started_s = time.monotonic()
    rows = {name: compare(name) for name in names}
    different = {name: row["different"] for name, row in rows.items() if row["different"]}
    told = {
        "environment": describe_environment("cpu"),
        "seconds": round(time.monotonic() - started_s),
        "programs": len(rows),
        "different": len(different),
        "rows": rows,
    }
    if not options.names:
        RESULT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} programs, {len(different)} different")
    return 1 if different else 0


def compare(name: str) -> dict[str, Any]:
    """Return what the compiler has done in a program, and what differs where it is recorded."""
    try:
        bare, recorded = pairs.compare(name)
        late = recorded_late(name)
    except AssertionError as error:  # the traceback stands above
        print(f"{name}: failed", flush=True)
        return {"different": {"failed": str(error)}}
    steps, notes = recorded.pop("steps"), recorded.pop("notes")
    found = {"recorded": recorded, "recorded late": late}
    different = {
        way: {
            what: {"bare": [one for one in _list(bare[what]) if one not in _list(other[what])][:3]}
            | {way: [one for one in _list(other[what]) if one not in _list(bare[what])][:3]}
            for what in bare
            if (set(other[what]) - set(bare[what]) if what == "asked" else bare[what] != other[what])
        }
        for way, other in found.items()
    }
    different = {way: what for way, what in different.items() if what}
    print(f"{name}: {json.dumps(different)[:2000] if different else 'equal'}", flush=True)
    compilations = bare["compilations"]
    return {
        "graphs": len(bare["graphs"]),
        "breaks": len(bare["breaks"]),
        "compilations": len(compilations),
        "recompilations": sum(why != "None" for *_, why, _ in compilations),
        "steps": steps,
        "notes": notes,
        "different": different,
    }


def recorded_late(name: str) -> dict[str, Any]:
    """Return the same of a program with a recording that begins when its code was compiled."""
    count, sessions = iter(range(1, 1_000_000)), []

    def begins() -> None:
        number = next(count)
        if number == FIRST:
            settings = RecordSettings(run_directory=pairs._PLACE, first_step=1, last_step=2, devices="cpu")
            sessions.append(start_recording(settings, pairs._PLACE / "rank-0", from_outside=False))
        elif number == LAST:
            stop_recording(sessions.pop(), "exit")

    variants.begins.append(begins)
    try:
        found = pairs.in_fork(name, is_recorded=False)
    finally:
        variants.begins.remove(begins)
    del found["modules"]
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else sorted(value.items())


if __name__ == "__main__":
    sys.exit(main())
