"""Runs the commands that README.md shows, and puts in what they print now: `python tools/make_captures.py`.

A page that shows the output of one of these commands once more has it replaced, too.

A block of output has a comment before it, `<!-- capture: PATTERN -->`. Lines of the output that match the pattern stay.
The commands run in an empty directory with the examples, three trainings on the CPU, a recording of GPT-2 on an H200
and the H200's operator database. This takes up to ten minutes, because a model is trained on that database.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
REPEATING = (ROOT / "docs" / "jobs" / "layer-cost.md",)
"""Pages that repeat an output of README.md, without its command."""
CAPTURE = re.compile(r"(<!-- capture: (?P<pattern>.+?) -->\n```text\n)(?P<body>.*?)(```\n)", re.DOTALL)
LAYER = "torch.nn:Linear?in_features=4096&out_features=4096"
PREPARATIONS = (
    "gpuledger run --out demo -q examples/gpt_text.py",
    "gpuledger run --out before -q train.py",
    "gpuledger run --out after -q train.py --batch-size 256",
    f'gpuledger ops capture --model "{LAYER}" --input 32x4096 -o layer.json',
)


def run(command: str, directory: Path) -> str:
    """Return the standard output of a command line."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}
    done = subprocess.run(["sh", "-c", command], cwd=directory, env=environment, capture_output=True, text=True)
    if done.returncode not in {0, 5}:
        raise SystemExit(f"{command}\n{done.stderr}")
    return done.stdout


def prepare(directory: Path) -> None:
    """Make the runs and files that the commands read."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from card_recordings import post_recording

    from gpuledger.model.run_directory import write_json

    shutil.copytree(ROOT / "examples", directory / "examples")
    shutil.copy(ROOT / "tests" / "data" / "docs" / "train.py", directory)
    recorded = post_recording("gpt2", directory / "recording").directory.parent
    write_json(recorded / "manifest.json", {"schema_version": 1, "name": "gpt2"})
    shutil.copytree(recorded, directory / "gpt2.ledger")
    for command in PREPARATIONS:
        run(command, directory)


def captured(body: str, pattern: str, directory: Path) -> str:
    """Return a block's commands, each with the lines of its output that match."""
    lines = []
    for command in re.findall(r"^\$ (.+)$", body, re.MULTILINE):
        printed = (line.rstrip() for line in run(command, directory).splitlines())
        lines += [f"$ {command}", *(line for line in printed if re.search(pattern, line))]
    return "\n".join(lines) + "\n"


def output_of(body: str) -> str:
    """Return what the first command of a block prints."""
    return "".join(takewhile(lambda line: not line.startswith("$"), body.splitlines(keepends=True)[1:]))


def main() -> int:
    """Write the pages."""
    texts = {page: page.read_text(encoding="utf-8") for page in (README, *REPEATING)}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        prepare(directory)
        for found in CAPTURE.finditer(texts[README]):
            body = captured(found["body"], found["pattern"], directory)
            print(body)
            texts[README] = texts[README].replace(found["body"], body)
            for page in REPEATING if output_of(found["body"]) else ():
                texts[page] = texts[page].replace(output_of(found["body"]), output_of(body))
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
