"""The costs of each tool on some models, in one process: used by bench/peers/side_by_side.py.

Writes one JSON document a line: the cell of a tool on a model in a round, with the median step before, inside and after
the tool, all of the same model. The steps before are bare: ratios to them are free of what changes from cell to cell.
The first training of each model is not written. Answers are timed in the first round. The order of the tools turns
with every round.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peer_answers import Asked, answer
from peer_outputs import forget
from peer_programs import WINDOW, Program, build
from peer_train import TOOLS, Unavailable, profiler, take_steps

COSTED = {**TOOLS, "profiler": partial(profiler, only_trace=True)}
BARE_STEPS = 6
"""Steps before the tool, and steps after it; the first of each is not counted."""


def made(model: str, device: str, scale: int) -> Program:
    """Return the program; its weights are made on the device, which takes less time."""
    with torch.device(device):
        return build(model, device, scale)


def cell(model: str, tool: str, device: str, scale: int, out: Path, *, asks: bool) -> dict[str, Any]:
    """Return what one training under one tool costs."""
    cuda, started_s = device == "cuda", time.perf_counter()
    program = made(model, device, scale)
    bare_ms = list(take_steps(program, range(1, BARE_STEPS + 1), cuda))
    first = BARE_STEPS + 1
    with COSTED[tool](out, device) as begin:
        between = begin(program)
        inside_ms = list(take_steps(program, range(first, first + WINDOW), cuda, between))
        ended_s = time.perf_counter()
    output_s = time.perf_counter() - ended_s
    after_ms = list(take_steps(program, range(first + WINDOW, first + WINDOW + BARE_STEPS), cuda))
    place = out / "side.ledger" if tool == "gpuledger" else out
    asked_s = time.perf_counter()
    if asks and tool != "none":
        asked = Asked(place, device, {}, {"step_ms": inside_ms, "steps_inside": WINDOW})
        for question in ("peak", "layer"):
            answer(tool, question, asked, device)
    return {
        "cell_s": time.perf_counter() - started_s,
        "bare_ms": statistics.median(bare_ms[1:]),
        "inside_ms": statistics.median(inside_ms[1:]),
        "after_ms": statistics.median(after_ms[1:]),
        "output_s": output_s,
        "answer_s": output_s + time.perf_counter() - asked_s if asks else None,
        "file_bytes": sum(one.stat().st_size for one in place.rglob("*") if one.is_file()),
    }


def main() -> None:
    """Print a line for every cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tools", nargs="+", default=list(TOOLS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=int, default=1)
    arguments = parser.parse_args()
    device, scale, tools = arguments.device, arguments.scale, list(arguments.tools)
    for model in arguments.models:
        list(take_steps(made(model, device, scale), range(1, BARE_STEPS), device == "cuda"))
    for repeat in range(arguments.repeats):
        turn = repeat % len(tools)
        for model in arguments.models:
            for tool in tools[turn:] + tools[:turn]:
                told = {"model": model, "tool": tool, "round": repeat}
                print(json.dumps(told | one_cell(model, tool, device, scale, asks=not repeat)), flush=True)
                forget()
                gc.collect()
                if device == "cuda":
                    torch.cuda.empty_cache()


def one_cell(model: str, tool: str, device: str, scale: int, *, asks: bool) -> dict[str, Any]:
    """Return the costs of a tool, or why there are none."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            return cell(model, tool, device, scale, Path(directory), asks=asks)
        except Unavailable as error:
            return {"unavailable": str(error)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}


if __name__ == "__main__":
    main()
