"""Programs as a user would write them, run bare and recorded, to be compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.model.run_directory import ASKED

GPULEDGER = (sys.executable, "-m", "gpuledger")

SHAPES_ASIDE = """
import sys, types
sys.modules["torch._meta_registrations"] = types.ModuleType("torch._meta_registrations")
"""
"""Stands in for the shapes of operators on tensors without values, which programs here have none of.

They are a third of what torch's import takes. With them goes ``torch.Generator``, which data loaders make.
"""

COMPILER_ASIDE = """
import sys, types
import torch
compiler = types.ModuleType("torch._dynamo")
compiler.disable, compiler.graph_break = (lambda function, *_, **__: function), (lambda: None)
compiler.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
sys.modules["torch._dynamo"] = torch._dynamo = compiler
"""
"""Stands in for torch's compiler, which takes as long to load as torch itself.

Every optimizer and process group loads it, only to be left alone by it.
"""

MODEL = """
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())
def step():
    optimizer.zero_grad()
    loss = model(torch.ones(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""
TRAIN = SHAPES_ASIDE + COMPILER_ASIDE + MODEL
"""Defines a small model and one training step of it."""
TRAIN_WITH_COMPILER = "import torch\n" + MODEL
"""The same as users write it."""

SETTINGS_OF_OTHERS = ("GPULEDGER_", "PYTHONPATH", "COV_", "COVERAGE_")


@dataclass(frozen=True)
class Ended:
    """How a program ended: its status as subprocess gives it, and all it wrote."""

    status: int
    stdout: bytes
    stderr: bytes


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without what would change a recording, and with ``changes``.

    Only memory is recorded unless ``GPULEDGER_PASSES`` is changed, to "" for what a user gets.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS_OF_OTHERS)}
    return {**kept, "GPULEDGER_PASSES": "memory", **changes}


def write_script(directory: Path, source: str, name: str = "train.py") -> Path:
    """Return the script after writing it."""
    place = directory / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(textwrap.dedent(source), encoding="utf-8")
    return place


def execute(
    command: list[str],
    directory: Path,
    env: dict[str, str] | None = None,
    stdin: bytes = b"",
    timeout_s: float = 600,
) -> Ended:
    """Return how ``command`` ended."""
    how: dict[str, Any] = {"cwd": directory, "env": env or environment(), "timeout": timeout_s}
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, **how)
    return Ended(done.returncode, done.stdout, done.stderr)


def bare(words: list[str], directory: Path, **how: Any) -> Ended:
    """Return how the program ends without us."""
    return execute([sys.executable, *words], directory, **how)


def recorded(words: list[str], directory: Path, options: tuple[str, ...] = ("-q",), **how: Any) -> Ended:
    """Return how the program ends below ``gpuledger run``."""
    return execute([*GPULEDGER, "run", *options, *words], directory, **how)


def start(words: list[str], directory: Path, options: tuple[str, ...] = ("-q",), **how: Any) -> subprocess.Popen[bytes]:
    """Return ``gpuledger run`` under way, once its program has said ``ready``."""
    running = subprocess.Popen(
        [*GPULEDGER, "run", *options, *words],
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **how,
    )
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line == b"ready\n", (line, running.stderr and running.stderr.read())
    return running


def signalled(running: subprocess.Popen[bytes], number: signal.Signals) -> Ended:
    """Return how a program under way ends after the launcher alone got a signal."""
    running.send_signal(number)
    stdout, stderr = running.communicate(timeout=600)
    return Ended(running.returncode, stdout, stderr)


def manifest(run_directory: Path) -> dict[str, Any]:
    """Return a manifest's content."""
    content: dict[str, Any] = json.loads((run_directory / "manifest.json").read_text())
    return content


def recorded_on_request(source: str, directory: Path, command: tuple[str, ...]) -> Ended:
    """Return how a program ended below ``gpuledger run --live``, of which a recording is requested while it runs."""
    write_script(directory, source)

    def ask() -> None:
        while not (directory / "train.ledger" / "listening").exists():
            time.sleep(0.05)
        (directory / "train.ledger" / ASKED).touch()

    threading.Thread(target=ask, daemon=True).start()
    return execute([*command, "run", "--live", "-q", "train.py"], directory)
