"""From a command to a workload: a child runs the program and writes down what its step was made of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.ops.workloads.workload import Workload, read_workload
from gpuledger.processes.parent_death import dying_with

STEPS = 2
"""The step that is captured: the first one makes the optimizer's states."""


def capture_program(
    program: Sequence[str], gpu: str | None, *, steps: int = STEPS, output: TextIO | None = None
) -> Workload:
    """Return what a step of a program is made of; the program is ended after it.

    Args:
        program: A script with its arguments, or ``-m``, a module and its arguments.
        gpu: ``cpu``, a card of the catalogue to be put in place, or None for what is here.
        steps: Which step is captured.
        output: Where the program's own output goes; None drops it.

    Raises:
        InputError: the program raised, or took no step.
        UsageError: there is nothing to run.
    """
    if program[0] != "-m" and not Path(program[0]).is_file():
        raise UsageError(f"{program[0]}: no such script", hint="gpuledger ops capture train.py, or -m MODULE")
    name = program[1] if program[0] == "-m" else program[0]
    with tempfile.TemporaryDirectory() as directory:
        order = Path(directory) / "order.json"
        order.write_text(json.dumps({"gpu": gpu, "steps": steps, "name": Path(name).stem}), encoding="utf-8")
        command = [sys.executable, "-m", "gpuledger.ops.workloads.child", str(order), *program]
        quiet = subprocess.DEVNULL if output is None else output
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(
            command, env=environment, stdout=quiet, stderr=quiet, check=False, preexec_fn=dying_with(os.getpid())
        )
        answer = order.with_name("outcome.json")
        if not answer.is_file():
            raise GpuLedgerError(f"{name}: the process that captured it ended with {done.returncode}")
        outcome = json.loads(answer.read_text(encoding="utf-8"))
        if "message" in outcome:
            raise InputError(f"{outcome.get('place') or name}: {outcome['message']}", hint=outcome.get("hint"))
        return read_workload(order.with_name("step.json"))
