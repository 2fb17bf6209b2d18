"""From a command to a workload: a child runs the program and writes down what its step was made of."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from gpuledger.errors import InputError, UsageError
from gpuledger.ops.workloads.workload import Workload, read_workload
from gpuledger.processes.child_job import run_program_job

STEPS = 2
"""The step that is captured: the first one makes the optimizer's states."""


def capture_program(
    program: Sequence[str], gpu: str | None, *, steps: int = STEPS, output: TextIO | None = None
) -> Workload:
    """Return what a step of a program is made of; the program is ended after it.

    Args:
        program: A script with its arguments, or ``-m``, a module and its arguments.
        gpu: ``cpu``, a GPU of the catalogue to be put in place, or None for what is here.
        steps: Which step is captured.
        output: Where the program's own output goes; None drops it.

    Raises:
        InputError: the program raised, or took no step.
        ChildJobError: the process that ran the program ended with it.
        UsageError: there is nothing to run.
    """
    if program[0] != "-m" and not Path(program[0]).is_file():
        raise UsageError(
            f"{program[0]}: no such script",
            hint="Name a Python script, or use -m MODULE: gpuledger ops capture train.py",
        )
    name = program[1] if program[0] == "-m" else program[0]
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "step.json"
        order = {"gpu": gpu, "steps": steps, "name": Path(name).stem, "answer": str(answer)}
        outcome = run_program_job("gpuledger.ops.workloads.child", order, program, output=output)
        if "message" in outcome:
            raise InputError(f"{outcome.get('place') or name}: {outcome['message']}", hint=outcome.get("hint"))
        return read_workload(answer)
