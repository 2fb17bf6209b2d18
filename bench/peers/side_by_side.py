"""What each of seven tools tells of the same trainings, and what it costs: overhead, files, time to an answer.

Twenty questions are asked of a small training with planted facts; a function takes each answer out of what the tool
wrote, and compares it with the truth. Costs are those of three other trainings, each under every tool in turn, against
the bare program of the same round. Every program runs in a fresh process.

Usage: python bench/peers/side_by_side.py --device cpu --out bench/peers/results/cpu/side_by_side.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from peer_answers import OTHER_PROGRAMS, QUESTIONS, Asked, answer
from peer_outputs import ledger
from peer_programs import ROWS, SLEEP_S, WINDOW, planted_facts
from peer_train import UNAVAILABLE

TOOLS = ("profiler", "snapshot", "mem_tracker", "zeus", "flop_counter", "gpuledger")
MODELS = ("resnet18", "gpt", "lstm")
TRAIN = str(LIB / "peer_train.py")
ONE_LIMIT_S = 120

Told = dict[str, Any]


@dataclass
class Desk:
    """Where programs run and put their outputs."""

    place: Path
    device: str
    scale: int
    count: int = 0

    def run(self, program: str, tool: str) -> tuple[Told, Path]:
        """Run one program under one tool; return what the program says and where the tool's output is."""
        self.count += 1
        out, told = self.place / f"{self.count}", self.place / f"{self.count}.told"
        out.mkdir()
        ranks = program == "ranks"
        training = [TRAIN, "planted" if ranks else program, "--out", str(out), "--told", str(told)]
        training += ["--device", self.device, "--scale", str(self.scale)]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if ranks else []
        if tool == "gpuledger":
            out = self.place / f"{self.count}.ledger"
            words = ["-m", "gpuledger", "run", "-q", "--out", str(out), *launcher, *training]
        else:
            words = [*launcher, *training, "--tool", tool]
        started_s = time.time()
        environment = {**os.environ, "OMP_NUM_THREADS": str(os.cpu_count() or 1)}
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, timeout=ONE_LIMIT_S, check=False, env=environment
        )
        ended_s = time.time()
        found: Told = json.loads(told.read_text()) if told.exists() else {}
        found |= {"status": done.returncode, "whole_s": ended_s - started_s}
        if done.returncode not in (0, UNAVAILABLE):
            found["error"] = "".join(done.stderr.splitlines(keepends=True)[-3:])[-400:]
        if "ended_s" in found:
            found["closing_s"] = ended_s - found["ended_s"]
        return found, out


def size_of(out: Path) -> int:
    """Return the bytes of a tool's files."""
    return sum(place.stat().st_size for place in out.rglob("*") if place.is_file())


def costs_of(tool: str, told: Told, out: Path, asked: Asked) -> Told:
    """Return what one run costs: steps, the whole process, files, and seconds to the peak and its layers."""
    steps_ms = told["step_ms"]
    started_s = time.time()
    if tool != "none":
        for question in ("peak", "layer"):
            answer(tool, question, asked, asked.device)
    asking_s = time.time() - started_s
    return {
        "inside_ms": statistics.median(steps_ms[1:WINDOW]),
        "after_ms": statistics.median(steps_ms[WINDOW + 1 :]),
        "whole_s": told["whole_s"],
        "file_bytes": size_of(out),
        "answer_s": asking_s + (told["closing_s"] if tool == "gpuledger" else told.get("output_s", 0.0)),
    }


def spread(values: list[float], digits: int = 3) -> Told:
    """Return median, lowest and highest of some values, and how many they are."""
    found = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
    return {**{key: round(value, digits) for key, value in found.items()}, "n": len(values)}


def costs_in_all(rounds: list[dict[str, Told]]) -> Told:
    """Return the costs of each tool against the bare program of the same round."""
    found: Told = {}
    for tool in TOOLS:
        each = [(one[tool], one["none"]) for one in rounds if tool in one and "none" in one]
        if not each:
            continue
        found[tool] = {
            "steps_inside": spread([cost["inside_ms"] / bare["inside_ms"] for cost, bare in each]),
            "steps_after": spread([cost["after_ms"] / bare["after_ms"] for cost, bare in each]),
            "whole_more_s": spread([cost["whole_s"] - bare["whole_s"] for cost, bare in each]),
            "file_bytes": spread([cost["file_bytes"] for cost, _ in each], 0),
            "answer_s": spread([cost["answer_s"] for cost, _ in each]),
        }
    return found


def measure(desk: Desk, models: list[str], repeats: int, limit_s: float) -> Told:
    """Return the costs by model; the order of tools turns with every round."""
    until_s = time.monotonic() + limit_s
    rounds: dict[str, list[dict[str, Told]]] = {model: [] for model in models}
    absent: set[str] = set()
    for repeat in range(repeats):
        for model in models:
            if time.monotonic() > until_s:
                break
            order = ["none", *(tool for tool in TOOLS if tool not in absent)]
            turn = repeat % len(order)
            one: dict[str, Told] = {}
            for tool in order[turn:] + order[:turn]:
                told, out = desk.run(model, tool)
                if told["status"] == UNAVAILABLE:
                    absent.add(tool)
                elif told["status"] == 0:
                    one[tool] = costs_of(tool, told, out, Asked(out, desk.device, facts_of(told, desk.scale)))
                else:
                    print(model, tool, told.get("error"), file=sys.stderr, flush=True)
            rounds[model].append(one)
            print(model, repeat + 1, {tool: round(cost["inside_ms"]) for tool, cost in one.items()}, flush=True)
    return {
        model: {
            "bare_step_ms": spread([one["none"]["inside_ms"] for one in done if "none" in one]),
            "tools": costs_in_all(done),
        }
        for model, done in rounds.items()
        if done
    }


def facts_of(bare: Told, scale: int) -> dict[str, float]:
    """Return the planted facts, and what the bare program measured."""
    measured = {key: bare[key] for key in ("peak_bytes", "used_bytes") if bare.get(key)}
    times = bare.get("step_ms") or [0.0]
    return {
        **planted_facts(ROWS * scale),
        **measured,
        "rows": ROWS * scale,
        "work_ms": statistics.median(times[1:] or times) - SLEEP_S * 1e3,
    }


def ask(desk: Desk) -> Told:
    """Return every tool's answers, by question."""
    programs = [
        program for program in ("planted", *OTHER_PROGRAMS.values()) if desk.device == "cuda" or program != "crash"
    ]
    facts = {program: facts_of(desk.run(program, "none")[0], desk.scale) for program in programs}
    answers: Told = {question: {} for question in QUESTIONS}
    unavailable: Told = {}
    errors: Told = {}
    for tool in TOOLS:
        outputs: dict[str, Asked | None] = {}
        for program in programs:
            told, out = desk.run(program, tool)
            outputs[program] = None if "unavailable" in told else Asked(out, desk.device, facts[program])
            if "unavailable" in told:
                unavailable[tool] = told["unavailable"]
                break
            if "error" in told and program != "crash":
                errors[f"{tool}, {program}"] = told["error"]
        for question in QUESTIONS:
            asked = outputs.get(OTHER_PROGRAMS.get(question, "planted"))
            found = answer(tool, question, asked, desk.device)
            answers[question][tool] = {"grade": found.grade, "value": found.value}
        print(tool, {question: each[tool]["grade"] for question, each in answers.items()}, flush=True)
    return {"facts": facts, "unavailable": unavailable, "errors": errors, "answers": answers}


def main() -> None:
    """Ask every question, then measure what each tool costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=int, default=0, help="multiplies the batch [default: 1, 8 on a GPU]")
    parser.add_argument("--limit-s", type=float, default=240.0, help="seconds after which no round begins")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    load = [round(os.getloadavg()[0], 2)]
    with tempfile.TemporaryDirectory() as directory:
        desk = Desk(Path(directory), arguments.device, arguments.scale or (8 if arguments.device == "cuda" else 1))
        asked = ask(desk)
        load.append(round(os.getloadavg()[0], 2))
        models = measure(desk, arguments.models, arguments.repeats, arguments.limit_s)
    load.append(round(os.getloadavg()[0], 2))
    results = {
        "environment": describe_environment(arguments.device),
        "processors": os.cpu_count(),
        "load_average_at_start_between_and_end": load,
        "repeats": min((len(one["tools"]) and one["bare_step_ms"]["n"] for one in models.values()), default=0),
        "steps": {"inside": WINDOW},
        "questions": QUESTIONS,
        **asked,
        "models": models,
    }
    ledger.cache_clear()
    write_results(arguments.out, results)


if __name__ == "__main__":
    main()
