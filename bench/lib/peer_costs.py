"""The costs of each tool on one model, in one process: used by bench/peers/side_by_side.py.

Writes one JSON document a line: the cell of a tool in a round, with the median step inside and after the tool. The
first training is bare and is not written. Answers are timed in the first round.
The order of the tools turns with every round.
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
from peer_programs import STEPS, WINDOW, build
from peer_train import TOOLS, Unavailable, profiler, take_steps

COSTED = {**TOOLS, "profiler": partial(profiler, only_trace=True)}


def cell(model: str, tool: str, device: str, scale: int, out: Path, *, asks: bool) -> dict[str, Any]:
    """Return what one training under one tool costs."""
    cuda = device == "cuda"
    with COSTED[tool](out, device) as begin:
        program = build(model, device, scale)
        between = begin(program)
        inside_ms = list(take_steps(program, range(1, WINDOW + 1), cuda, between))
        ended_s = time.perf_counter()
    output_s = time.perf_counter() - ended_s
    after_ms = list(take_steps(program, range(WINDOW + 1, STEPS + 1), cuda))
    place = out / "side.ledger" if tool == "gpuledger" else out
    asked_s = time.perf_counter()
    if asks and tool != "none":
        asked = Asked(place, device, {}, {"step_ms": inside_ms, "steps_inside": WINDOW})
        for question in ("peak", "layer"):
            answer(tool, question, asked, device)
    return {
        "inside_ms": statistics.median(inside_ms[1:]),
        "after_ms": statistics.median(after_ms[1:]),
        "output_s": output_s,
        "answer_s": output_s + time.perf_counter() - asked_s if asks else None,
        "file_bytes": sum(one.stat().st_size for one in place.rglob("*") if one.is_file()),
    }


def main() -> None:
    """Print a line for every cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tools", nargs="+", default=list(TOOLS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=int, default=1)
    arguments = parser.parse_args()
    tools = list(arguments.tools)
    list(
        take_steps(
            build(arguments.model, arguments.device, arguments.scale), range(1, STEPS), arguments.device == "cuda"
        )
    )
    for repeat in range(arguments.repeats):
        turn = repeat % len(tools)
        for tool in tools[turn:] + tools[:turn]:
            line: dict[str, Any] = {"tool": tool, "round": repeat}
            with tempfile.TemporaryDirectory() as directory:
                try:
                    line |= cell(
                        arguments.model, tool, arguments.device, arguments.scale, Path(directory), asks=not repeat
                    )
                except Unavailable as error:
                    line["unavailable"] = str(error)
                except Exception as error:
                    line["error"] = f"{type(error).__name__}: {error}"[:300]
            print(json.dumps(line), flush=True)
            forget()
            gc.collect()
            if arguments.device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
