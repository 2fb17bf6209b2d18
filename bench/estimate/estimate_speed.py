"""Measures how long an estimate takes and how much memory: GPT-2 small for three steps, Llama-2's 7B shape for one.

Needs no GPU. Each is the whole command in a process of its own, imports included; memory is the most that process or
the one it follows the program in held at once. CPU time depends less on other load than wall time. Compared with one
estimate of GPT-2 small are that of all GPUs and the search of the largest batch.

Usage: python bench/estimate/estimate_speed.py --out bench/estimate/results/cpu/estimate_speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

PROGRAMS = {
    "gpt2-small": (
        3,
        """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config()).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(9):
    tokens = torch.randint(50257, (int(sys.argv[2]), 512), device="cuda")
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
""",
    ),
    "llama-2-7b-shape": (
        1,
        """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
with torch.device("cuda"):
    model = LlamaForCausalLM(LlamaConfig(dtype="bfloat16")).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(9):
    tokens = torch.randint(32000, (1, 2048), device="cuda")
    optimizer.zero_grad()
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
""",
    ),
}
"""Name -> steps and program."""


ONE = ("--gpu", "h200")
WAYS = {"one": ONE, "all GPUs": ("--gpu", "all"), "largest batch": ("--gpu", "l4", "--find-batch", "batch-size")}
"""Options of estimates of GPT-2 small that are compared."""


def _cpu_s() -> float:
    """Return the CPU time of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(steps: int, program: str, options: Sequence[str] = ONE) -> dict[str, Any]:
    """Return seconds and the most bytes a process held, of the whole command."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "train.py"
        script.write_text(program, encoding="utf-8")
        words = ["-m", "gpuledger", "estimate", "-q", "--json", "--steps", str(steps), *options]
        out = [] if "--find-batch" in options else ["--out", str(Path(directory) / "run")]
        command = [sys.executable, *words, *out, str(script), "--batch-size", "8"]
        started_s, cpu_s = time.monotonic(), _cpu_s()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall_s, cpu_s = time.monotonic() - started_s, _cpu_s() - cpu_s
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-2:]}
    found = json.loads(done.stdout)
    return {
        "steps": steps,
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1),
        "most_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10,
        "peak_process_bytes": found.get("peak_process_bytes"),
        "values_tried": len(found["trials"]) if "trials" in found else None,
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure each program and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "cpu" / "estimate_speed.json")
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS))
    arguments = parser.parse_args()
    results: dict[str, Any] = {"environment": describe_environment("cpu"), "cores": os.cpu_count(), "programs": {}}
    for name in arguments.only:
        results["programs"][name] = measure(*PROGRAMS[name])
        print(name, results["programs"][name], flush=True)
        write_results(arguments.out, results)
    results["ways"] = {}
    for way, options in WAYS.items():
        results["ways"][way] = measure(*PROGRAMS["gpt2-small"], options)
        print(way, results["ways"][way], flush=True)
        write_results(arguments.out, results)


if __name__ == "__main__":
    main()
