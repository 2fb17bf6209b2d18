"""Runs programs that fail in different ways for lack of memory, and compares the first sentence with the planted cause.

Each program runs twice, each time in a process of its own, forked after torch was imported and before CUDA is used. One
is recorded. The other has PyTorch's memory history, of which an observer writes a snapshot at the error. A fixed list
of questions is put to PyTorch's message, to that snapshot and to the recording. Most fail after 18 steps, when all
measurements have ended; with ``--after 9``, while the time of steps is measured. Ends within 200 s.

Usage: python bench/memory/out_of_memory.py --out bench/memory/results/h200/out_of_memory.json
       python bench/memory/out_of_memory.py --after 9 --out bench/memory/results/h200/out_of_memory_early.json
       python bench/memory/out_of_memory.py --grade-again --out FILE   # grades the lines in a result again
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from crash_answers import QUESTIONS, Crash, answers_of, grade_lines_again, read_snapshot, without_folders
from crash_facts import TOLD, Facts, facts_of, in_use, line_of, observe
from crash_programs import EACH_S, HEALTHY, HOLDERS, HOLDING, PROGRAMS
from environment import describe_environment, write_results
from one_by_one import names_in_time, out_and_only

from gpuledger.analyze.memory.failures.oom import explain_oom
from gpuledger.analyze.memory.failures.replayed_settings import FailureReplay
from gpuledger.analyze.memory.growth import find_growth
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session
from gpuledger.model.run import Rank
from gpuledger.report.json.document import growth_document, oom_document

HISTORY_ENTRIES = 100_000
"""Events that PyTorch's history keeps, as many as the flight recorder."""
FILE = LIB / "crash_programs.py"


def truth_of(program: Callable[[], None], error: BaseException, seen: Facts) -> Facts:
    """Return what is true of a crash."""
    told = dict(TOLD)
    known = told.pop("model", lambda: None)()
    return {
        "cause": PROGRAMS.get(program, ""),
        **told,
        **(seen or in_use()),
        **facts_of(error, FILE, known),
        "holding_line": line_of(HOLDING[program], FILE) if program in HOLDING else "",
        "holder": HOLDERS.get(program, ""),
    }


def beside(program: Callable[[], None], directory: Path) -> dict[str, Any]:
    """Return what PyTorch's message and its snapshot tell of a program's crash; called in its own process."""
    place = directory / f"{program.__name__}.pickle"
    took_s = 0.0

    def dump() -> None:
        nonlocal took_s
        started_s = time.perf_counter()
        torch.cuda.memory._dump_snapshot(str(place))
        took_s = time.perf_counter() - started_s

    torch.cuda._lazy_call(lambda: torch.cuda.memory._record_memory_history(max_entries=HISTORY_ENTRIES))
    seen = observe(dump)
    try:
        program()
    except Exception as raised:
        if not place.exists():  # not the allocator's error
            dump()
        truth, message = truth_of(program, raised, seen), f"{type(raised).__name__}: {raised}"
    else:
        return {"error": "the program did not fail"}
    lines = (truth["request_line"],)
    crash = Crash(PROGRAMS[program], message, lines, read_snapshot(place), None, ())
    answers = {tool: answers_of(tool, crash, truth) for tool in ("message", "snapshot")}
    return {
        "error": message,
        "truth": truth,
        "answers": {tool: {name: asdict(one) for name, one in found.items()} for tool, found in answers.items()},
        "snapshot_s": took_s,
        "snapshot_bytes": place.stat().st_size,
    }


def run(program: Callable[[], None], directory: Path) -> dict[str, Any]:
    """Return what a program's recording says; called in its own process."""
    rank_directory = directory / f"{program.__name__}.ledger" / "rank-0"
    rank_directory.mkdir(parents=True)
    settings = RecordSettings(rank_directory.parent, stacks=True, devices="cuda", flight_recorder=True)
    session = Session(settings, rank_directory=lambda: rank_directory, from_outside=True, begins_late=False)
    session.start()
    seen = observe()
    truth: Facts = {}
    error = ""
    try:
        program()
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
        truth = truth_of(program, raised, seen)
        session.finish("exit")  # inside, because the error of a library is seen at the end
    else:
        session.finish("exit")
    rank = Rank(0, rank_directory, post_rank(rank_directory))
    return {"error": error, "truth": truth, **told_by(rank, PROGRAMS.get(program, ""), truth)}


def told_by(rank: Rank, planted: str, truth: Facts) -> dict[str, Any]:
    """Return what a recording tells of a crash, its answers, and what it cost."""
    found = explain_oom(rank)
    growth = next((one.cause for one in found if one.cause), None)
    first = found[0] if found else None
    failure = None if first is None else oom_document(0, first)
    grown = [growth_document(one) for one in find_growth(rank)]
    crash = Crash(planted, "", (), None, failure, tuple(grown))
    answers = answers_of("gpuledger", crash, truth)
    verdicts = FailureReplay(rank, rank.manifest.oom[0]).verdicts() if found else ()
    return {
        "kind": None if growth is None else growth.kind,
        "sentence": None if growth is None else growth.sentence,
        "answers": {"gpuledger": {name: asdict(one) for name, one in answers.items()}},
        "failure": without_folders(failure),
        "growth": without_folders(grown),
        "verdicts": [[one.alloc_conf, one.fits, one.note] for one in verdicts],
        "took_ns": [one.took_ns for one in rank.manifest.oom],
        "run_bytes": sum(one.stat().st_size for one in rank.directory.rglob("*") if one.is_file()),
        "censuses": [one.took_ns for one in rank.manifest.censuses],
        "notes": list(rank.manifest.notes),
    }


Way = Callable[[Callable[[], None], Path], dict[str, Any]]


def forked(way: Way, program: Callable[[], None], directory: Path) -> dict[str, Any]:
    """Return the result of a program in a forked child, which is ended after :data:`EACH_S`."""
    answer = directory / f"{program.__name__}-{way.__name__}.json"
    started_s = time.monotonic()
    child = os.fork()
    if child == 0:
        signal.alarm(EACH_S)
        try:
            answer.write_text(json.dumps(way(program, directory)))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    found = json.loads(answer.read_text()) if answer.exists() else {"error": f"wait status {status}", "kind": None}
    return {**found, "took_s": round(time.monotonic() - started_s, 1)}


def main() -> None:
    """Run every program and print a line for each."""
    arguments = out_and_only(__doc__, "program", grades=True)
    if arguments.grade_again:
        earlier = json.loads(arguments.out.read_text(encoding="utf-8"))
        for found in earlier["programs"].values():
            grade_lines_again(found)
        write_results(arguments.out, earlier)
        return
    HEALTHY[0] = arguments.after or HEALTHY[0]
    results: dict[str, Any] = {}
    programs = {program.__name__: program for program in PROGRAMS}
    with tempfile.TemporaryDirectory() as directory:
        for name in names_in_time(programs, arguments.only, 170):
            program, planted = programs[name], PROGRAMS[programs[name]]
            found, bare = (forked(way, program, Path(directory)) for way in (run, beside))
            answers = {**bare.pop("answers", {}), **found.pop("answers", {})}
            results[name] = {
                "planted": planted,
                "right": found.get("kind") == planted,
                **found,
                "answers": answers,
                "without": bare,
            }
            words = (name, planted, found.get("kind"), found.get("sentence"))
            print(*words, f"{found['took_s']} s and {bare['took_s']} s", flush=True)
            write_results(arguments.out, {"programs": results})
    questions = {name: one.text for name, one in QUESTIONS.items()}
    about = {"environment": describe_environment("cuda"), "healthy_steps": HEALTHY[0], "questions": questions}
    write_results(arguments.out, {**about, "programs": results})


if __name__ == "__main__":
    main()
