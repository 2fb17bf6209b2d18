"""Records small trainings with planted leaks and healthy ones: which leaks are found and named, and false alarms.

Each program runs on the CPU in a process of its own, forked after torch was imported, with the usual limits of time. A
leak is named if the object that is told is the planted one, or if nothing is told where nothing has a name. A container
with a limit that is still filling is no leak, and must be told as such. Takes some ten minutes of CPU time.

Usage: python bench/memory/leaks.py --out bench/memory/results/cpu/leaks.json [--only NAME]
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

import healthy_loops  # noqa: F401 - adds programs
import leaking_loops  # noqa: F401 - adds programs
from environment import describe_environment, write_results
from healthy_programs import HEALTHY
from leaking_programs import LEAKS
from one_by_one import names_in_time, out_and_only

from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session


def record(program: Callable[[], object], out: Path) -> None:
    """Run a program in a forked child with `gpuledger run`'s recorders and their defaults.

    Raises:
        RuntimeError: The program failed.
    """
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            raise RuntimeError(program.__name__)
        return
    status = 1
    try:
        directory = out / "rank-0"
        directory.mkdir(parents=True)
        settings = RecordSettings(out, stacks=True, devices="cpu", flight_recorder=True)
        session = Session(settings, rank_directory=lambda: directory, from_outside=True, begins_late=False)
        session.start()
        program()
        session.finish("exit")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def read(out: Path) -> dict[str, Any]:
    """Return what a run says of growth."""
    from gpuledger.analyze.memory.growth import find_growth
    from gpuledger.analyze.posting.posting import post_rank
    from gpuledger.model.run import Rank
    from gpuledger.report.text.growth_text import growth_text

    rank = Rank(0, out / "rank-0", post_rank(out / "rank-0"))
    found = [one for one in find_growth(rank) if not one.will_end]
    holder = found[0].holder if found else None
    return {
        "is_found": bool(found),
        "text": growth_text(found[0]) if found else None,
        "holder": None if holder is None else holder.shown_name,
        "censuses_ms": [round(one.took_ns / 1e6, 1) for one in rank.manifest.censuses],
        "counts_ms": [round(one.count_ns / 1e6, 1) for one in rank.manifest.censuses if one.count_ns is not None],
    }


def names_one_of(shown: str | None, names: tuple[str, ...]) -> bool:
    """Return whether the shown object has one of the names; or no name is shown if there is none."""
    words = re.findall(r"\w+", shown or "")
    return any(name in words for name in names) if names else not words


def doc(program: Callable[[], object]) -> str:
    """Return what a program is, in a sentence."""
    return program.__doc__ or program.__name__


def main() -> None:
    """Run every program, then read the runs, print a line for each, and count."""
    arguments = out_and_only(__doc__, "program")
    torch.set_num_threads(1)
    programs = {program.__name__: program for program in (*LEAKS, *HEALTHY)}
    with tempfile.TemporaryDirectory() as directory:
        ran = list(names_in_time(programs, arguments.only, 3600))
        for name in ran:
            record(programs[name], Path(directory) / name)
            print("ran", name, flush=True)
        found = {name: read(Path(directory) / name) for name in ran}
    leaks = {one.__name__: found[one.__name__] for one in LEAKS if one.__name__ in found}
    healthy = {one.__name__: found[one.__name__] for one in HEALTHY if one.__name__ in found}
    for program, names in LEAKS.items():
        if one := leaks.get(program.__name__):
            one["is_named"] = one["is_found"] and names_one_of(one["holder"], names)
            print(
                "named" if one["is_named"] else "found" if one["is_found"] else "MISSED", program.__name__, one["text"]
            )
    for name, one in healthy.items():
        print("FALSE ALARM" if one["is_found"] else "healthy", name, one["text"] or "")
    results = {
        "environment": describe_environment("cpu"),
        "leaks": {
            "programs": len(leaks),
            "found": sum(one["is_found"] for one in leaks.values()),
            "named": sum(one["is_named"] for one in leaks.values()),
            "missed": [doc(one) for one in LEAKS if one.__name__ in leaks and not leaks[one.__name__]["is_found"]],
        },
        "healthy": {"programs": len(healthy), "false_alarms": sum(one["is_found"] for one in healthy.values())},
        "programs": {"leaks": leaks, "healthy": healthy},
    }
    print(results["leaks"], results["healthy"])
    write_results(arguments.out, results)


if __name__ == "__main__":
    main()
