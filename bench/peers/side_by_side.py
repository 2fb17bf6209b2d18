"""Compares seven tools on the same trainings: their answers, overhead, files, and time to an answer.

Twenty questions are asked of a small training with planted facts, in a fresh process for each tool. A function takes a
value out of what the tool wrote; one rule a question compares it with the truth. Costs are those of five other
trainings in one process, with every tool in turn, against the bare steps of the same model just before. A round has
all models, so that a run that is cut short has as many of each. The file of results is written anew again and again.

Usage: python bench/peers/side_by_side.py --device cuda --limit-s 280 --out bench/peers/results/h200/side_by_side.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from peer_answers import (
    ANSWERS,
    COMPARED_PROGRAMS,
    NOT_ASKED,
    NOT_GRADED,
    NOTES,
    OF_THE_PROCESS,
    OTHER_PROGRAMS,
    PLANTED_LINES,
    QUESTIONS,
    Asked,
    answer,
    grade_again,
)
from peer_outputs import shown
from peer_programs import ROWS, WINDOW, planted_facts
from peer_train import UNAVAILABLE

TOOLS = ("profiler", "snapshot", "mem_tracker", "zeus", "flop_counter", "nvidia_smi", "gpuledger")
MODELS = ("resnet18", "gpt", "lstm", "convolutions", "perceptron")
ONE_LIMIT_S = 60
OF_THE_BARE = ("peak_bytes", "workspace_bytes", "wide_forward_ms", "step_energy_j")
BARE_PROGRAMS = ("planted", "long")
"""Programs of which a truth is measured without a tool; the facts of the others are planted."""
NOT_ALONE = ("snapshot", "mem_tracker", "flop_counter")
"""Tools whose answers have no times, and no bytes of other processes."""
KEPT = {"planted": ("time",), "awake": ("time",), "crash": ("out_of_memory", "growth"), "long": ("energy",)}
"""Parts of gpuledger's documents that are kept in the results."""

Told = dict[str, Any]


@dataclass
class Desk:
    """Where programs run and put their outputs, until when, and what is written."""

    place: Path
    device: str
    scale: int
    out: Path
    until_s: float
    results: Told = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.until_s - time.monotonic()

    def write(self) -> None:
        """Write what is known by now."""
        with self.lock:
            write_results(self.out, self.results)

    def run(self, program: str, tool: str) -> tuple[Told, Path]:
        """Run one program under one tool; return what the program says and where the tool's output is."""
        out, told = self.place / f"{program}-{tool}", self.place / f"{program}-{tool}.told"
        out.mkdir()
        training = [str(LIB / "peer_train.py"), program, "--out", str(out), "--told", str(told)]
        training += ["--device", self.device, "--scale", str(self.scale)]
        if tool == "gpuledger":
            out = self.place / f"{program}-{tool}.ledger"
            words = ["-m", "gpuledger", "run", "-q", "--out", str(out), *training]
        else:
            words = [*training, "--tool", tool, *(["--alone"] if tool == "none" else [])]
        try:
            done = subprocess.run(
                [sys.executable, *words],
                capture_output=True,
                text=True,
                timeout=min(ONE_LIMIT_S, max(self.left_s, 1)),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": "took too long"}, out
        found: Told = json.loads(told.read_text()) if told.exists() else {}
        if done.returncode not in (0, UNAVAILABLE):
            found["error"] = "".join(done.stderr.splitlines(keepends=True)[-3:])[-400:]
        return found, out


def spread(values: list[float], digits: int = 3) -> Told:
    """Return median, lowest and highest of some values, and how many they are."""
    found = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
    return {**{key: round(value, digits) for key, value in found.items()}, "n": len(values)}


def costs_in_all(cells: list[Told]) -> Told:
    """Return the costs of each tool on one model, steps against the bare ones just before."""
    found: Told = {}
    for tool in ("none", *TOOLS):
        each = [one for one in cells if one["tool"] == tool and "inside_ms" in one]
        if not each:
            continue
        answers_s = [one["answer_s"] for one in each if one["answer_s"] is not None]
        found[tool] = {
            "steps_inside": spread([one["inside_ms"] / one["bare_ms"] for one in each]),
            "steps_after": spread([one["after_ms"] / one["bare_ms"] for one in each]),
            "output_s": spread([one["output_s"] for one in each]),
            "answer_s": spread(answers_s) if answers_s else None,
            "file_bytes": spread([one["file_bytes"] for one in each], 0),
            "cell_s": spread([one["cell_s"] for one in each]),
        }
    return found


def measure(desk: Desk, models: list[str], repeats: int) -> None:
    """Add the costs by model, for as many rounds as the time allows."""
    absent = desk.results["unavailable"]
    words = [sys.executable, str(LIB / "peer_costs.py"), *models, "--repeats", str(repeats), "--tools", "none"]
    words += [tool for tool in TOOLS if tool not in absent]
    words += ["--device", desk.device, "--scale", str(desk.scale)]
    cells: list[Told] = []
    found: Told = desk.results.setdefault("models", {})
    with (desk.place / "costs.err").open("w+") as error:
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=error, text=True)
        cut = threading.Timer(max(desk.left_s, 1), child.kill)
        cut.start()
        for line in child.stdout or ():
            if not line.startswith("{"):  # torch.profiler prints, too
                continue
            cells.append(json.loads(line))
            mine = [one for one in cells if one["model"] == cells[-1]["model"]]
            bare = [one["bare_ms"] for one in mine if "bare_ms" in one]
            found[mine[0]["model"]] = {
                "bare_step_ms": spread(bare) if bare else None,
                "tools": costs_in_all(mine),
                "errors": sorted({f"{one['tool']}: {one['error']}" for one in mine if "error" in one}),
            }
            desk.write()
        status = child.wait()
        cut.cancel()
        if status:
            error.seek(0)
            desk.results["errors"]["costs"] = f"exit status {status}: {error.read()[-300:]}"
    print("costs", f"{len(cells)} cells", round(desk.left_s), flush=True)


def facts_of(scale: int, bare: Told, own: Told) -> dict[str, float]:
    """Return the planted facts, what the bare program measured, and what the watched one told of its process."""
    return {
        **planted_facts(ROWS * scale),
        **{name: bare[name] for name in OF_THE_BARE if bare.get(name)},
        **{name: own[name] for name in OF_THE_PROCESS if own.get(name)},
    }


def ask(desk: Desk) -> None:
    """Add every tool's answers: programs with times one after the other, the others beside each other."""
    results = desk.results
    programs = ["planted", "awake", "spike", "leak", "compiled", *(["crash", "long"] if desk.device == "cuda" else [])]
    found: dict[tuple[str, str], tuple[Told, Path]] = {}
    needed = [(program, tool) for program in programs for tool in ("none", *TOOLS) if asked_of(program, tool)]

    def run(pair: tuple[str, str]) -> None:
        if pair[1] not in results["unavailable"]:
            found[pair] = told, _ = desk.run(*pair)
            if "unavailable" in told:
                results["unavailable"][pair[1]] = told["unavailable"]
            elif "error" in told and (pair[0] != "crash" or "OutOfMemoryError" not in told["error"]):
                results["errors"][f"{pair[1]}, {pair[0]}"] = told["error"]

    alone = [pair for pair in needed if pair[0] in ("planted", "awake", "long") and pair[1] not in NOT_ALONE]
    for pair in alone:
        run(pair)
    print("alone", round(desk.left_s), flush=True)
    workers = max(1, min(8, (os.cpu_count() or 2) // 2))
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, [pair for pair in needed if pair not in alone]))
    print("others", round(desk.left_s), flush=True)

    def answer_one(pair: tuple[str, str]) -> None:
        tool, question = pair
        program = OTHER_PROGRAMS.get(question, "planted")
        told, out = found.get((program, tool), ({"unavailable": ""}, Path()))
        bare = found.get((program, "none"), ({}, Path()))[0]
        compared = found.get((COMPARED_PROGRAMS.get(question, ""), tool), ({}, None))[1]
        facts = facts_of(desk.scale, bare, told)
        asked = None if "unavailable" in told else Asked(out, desk.device, facts, told, compared)
        one = answer(tool, question, asked, desk.device)
        results["answers"][question][tool] = {"grade": one.grade, "value": one.value}

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(answer_one, [(tool, question) for question in QUESTIONS for tool in TOOLS]))
    results["facts"] = {
        program: facts_of(desk.scale, told[0], told[0]) for (program, tool), told in found.items() if tool == "none"
    }
    for program, names in KEPT.items():
        if (program, "gpuledger") in found:
            whole = shown(found[program, "gpuledger"][1])
            results["documents"][program] = {name: without_rows(whole.get(name)) for name in names}
    desk.write()
    print("answers", round(desk.left_s), flush=True)


def without_rows(part: Any) -> Any:
    """Return a part of a document without its tables."""
    tables = ("breakdown", "scopes", "lines", "accounts")
    return {name: value for name, value in part.items() if name not in tables} if isinstance(part, dict) else part


def asked_of(program: str, tool: str) -> bool:
    """Return whether a program is to be run under a tool: one question at least needs it."""
    if tool == "none":
        return program in BARE_PROGRAMS
    return any(
        program in (OTHER_PROGRAMS.get(question, "planted"), COMPARED_PROGRAMS.get(question))
        for question in ANSWERS[tool]
    )


def main() -> None:
    """Ask every question, then measure what each tool costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="the smallest batch, also on a GPU")
    parser.add_argument("--limit-s", type=float, default=280.0, help="seconds after which everything is stopped")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path)
    where.add_argument("--regrade", type=Path, metavar="FILE", help="grade the answers of a file again, run nothing")
    arguments = parser.parse_args()
    if arguments.regrade:
        results = json.loads(arguments.regrade.read_text(encoding="utf-8"))
        grade_again(results)
        write_results(arguments.regrade, results)
        return
    until_s = time.monotonic() + arguments.limit_s
    scale = 8 if arguments.device == "cuda" and not arguments.small else 1
    with tempfile.TemporaryDirectory() as directory:
        desk = Desk(Path(directory), arguments.device, scale, arguments.out, until_s)
        desk.results |= {
            "environment": describe_environment(arguments.device),
            "processors": os.cpu_count(),
            "load_average": [round(os.getloadavg()[0], 2)],
            "repeats": arguments.repeats,
            "steps_inside": WINDOW,
            "scale": scale,
            "questions": {name: {"text": text, "truth": rule.truth} for name, (text, rule) in QUESTIONS.items()},
            "notes": NOTES,
            "planted_lines": PLANTED_LINES,
            "not_graded": NOT_GRADED,
            "not_asked": NOT_ASKED,
            "documents": {},
            "unavailable": {},
            "errors": {},
            "answers": {name: {} for name in QUESTIONS},
        }
        ask(desk)
        desk.results["load_average"].append(round(os.getloadavg()[0], 2))
        measure(desk, arguments.models, arguments.repeats)
        desk.results["load_average"].append(round(os.getloadavg()[0], 2))
        desk.results["took_s"] = round(arguments.limit_s - desk.left_s)
        desk.write()


if __name__ == "__main__":
    main()
