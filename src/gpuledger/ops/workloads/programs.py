"""Capture a command as a workload: a child process runs the program and writes the operators of a step."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from gpuledger.errors import InputError, UsageError
from gpuledger.ops.workloads.workload import Workload, read_workload
from gpuledger.processes.child_job import run_program_job

STEPS = 2
"""Default step to capture. The first one creates the optimizer's state."""


def capture_program(
    program: Sequence[str], gpu: str | None, *, steps: int = STEPS, output: TextIO | None = None
) -> Workload:
    """Return the workload of a step of a program. The program is stopped after the step.

    Args:
        program: A script with its arguments, or ``-m``, a module and its arguments.
        gpu: ``cpu``, a GPU of the catalogue to simulate, or None for this machine's GPU.
        steps: Number of the step to capture.
        output: Stream for the program's own output; None discards it.

    Raises:
        InputError: the program raised, or took no step.
        ChildJobError: the process that ran the program ended with it.
        UsageError: there is no program.
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
