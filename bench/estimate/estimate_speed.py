"""Measures how long an estimate takes and how much memory: GPT-2 small for three steps, Llama-2's 7B shape for one.

Needs no GPU. Each is the whole command in a process of its own, imports included; memory is the most that process or
the one it follows the program in held at once. CPU time depends less on other load than wall time. Compared with one
estimate of GPT-2 small is that of all GPUs. For each of four programs, one estimate is compared with the search of the
largest batch.

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

SEARCHED = {
    "gpt2-small": PROGRAMS["gpt2-small"][1],
    "convolutions": """
import sys
import torch
from torch import nn
torch.backends.cudnn.deterministic = True
def block(width, wider):
    return [nn.Conv2d(width, wider, 3, 2, 1), nn.BatchNorm2d(wider), nn.ReLU(), nn.Conv2d(wider, wider, 3, 1, 1)]
widths = (3, 64, 128, 256, 512)
layers = [layer for pair in zip(widths, widths[1:]) for layer in block(*pair)]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(100):
    images = torch.randn(int(sys.argv[2]), 3, 224, 224, device="cuda")
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), torch.randint(1000, images.shape[:1], device="cuda")).backward()
    optimizer.step()
""",
    "recurrent": """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
batch = parser.parse_args().batch_size
words, lstm, head = nn.Embedding(20000, 512), nn.LSTM(512, 1024, 2, batch_first=True), nn.Linear(1024, 20000)
model = nn.ModuleList([words, lstm, head]).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
for texts, in DataLoader(TensorDataset(torch.randint(20000, (40000, 65))), batch, shuffle=True):
    texts = texts.to("cuda")
    scores = head(lstm(words(texts[:, :-1]))[0])
    optimizer.zero_grad()
    nn.functional.cross_entropy(scores.flatten(0, 1), texts[:, 1:].flatten()).backward()
    optimizer.step()
""",
    "encoder": """
import argparse
import torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
batch = parser.parse_args().batch_size
layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
model = nn.TransformerEncoder(layer, 12).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1000):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(batch, 256, 768, device="cuda")).pow(2).mean()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, loss.item())
""",
}
"""Name -> program of which the largest batch is searched."""

ONE = ("--gpu", "h200")
WAYS = {"one": ONE, "all GPUs": ("--gpu", "all")}
"""Options of estimates of GPT-2 small that are compared."""
SEARCH = ("--gpu", "l4", "--find-batch", "batch-size")


def _cpu_s() -> float:
    """Return the CPU time of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(steps: int | None, program: str, options: Sequence[str] = ONE) -> dict[str, Any]:
    """Return seconds and the most bytes a process held, of the whole command. ``steps`` is None for the default."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "train.py"
        script.write_text(program, encoding="utf-8")
        limit = [] if steps is None else ["--steps", str(steps)]
        words = ["-m", "gpuledger", "estimate", "-q", "--json", *limit, *options]
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
        "largest": found.get("largest"),
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
    results["searches"] = {}
    for name, program in SEARCHED.items():
        sides = {"one": measure(None, program, SEARCH[:2]), "search": measure(None, program, SEARCH)}
        results["searches"][name] = sides
        if not any("failed" in side for side in sides.values()):
            sides["ratio"] = round(sides["search"]["cpu_s"] / sides["one"]["cpu_s"], 2)
        print(name, sides, flush=True)
        write_results(arguments.out, results)
    results["ways"] = {}
    for way, options in WAYS.items():
        results["ways"][way] = measure(*PROGRAMS["gpt2-small"], options)
        print(way, results["ways"][way], flush=True)
        write_results(arguments.out, results)


if __name__ == "__main__":
    main()
