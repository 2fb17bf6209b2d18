"""The child process that captures a program and reports how it ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from gpuledger.ops.workloads.capture import Capture, why_compiled
from gpuledger.ops.workloads.captures import CPU, device_named
from gpuledger.ops.workloads.workload import Mode, Workload
from gpuledger.processes.child_job import serve_job
from gpuledger.simulate.estimate.child import run_as_main
from gpuledger.simulate.estimate.failures import describe_failure
from gpuledger.simulate.gpu.card import let_torchvision_import
from gpuledger.simulate.rest.ending import StepsDone


def follow(order: dict[str, Any], program: list[str]) -> dict[str, Any]:
    """Run a program as ``__main__`` and write the operators of its step to the order's ``answer``.

    Returns:
        Nothing, or ``message`` and ``place`` of an error.
    """
    let_torchvision_import()
    notes: dict[str, None] = {}
    gpu = order["gpu"] or (None if torch.cuda.is_available() else CPU)
    with device_named(gpu, lambda sentence: notes.setdefault(sentence)) as place:
        capture = Capture(
            place.holds, place.device, on_step=lambda seen: _end_after(seen, order["steps"]), renamed=place.renamed
        )
        with capture:
            failure = _run(program)
    if failure:
        return failure
    if capture.uncompiled:
        return why_compiled(capture.uncompiled)
    if not capture.finished or not capture.finished.uses:
        return _why_nothing(capture, place.title)
    if capture.steps.seen < order["steps"]:
        notes.setdefault(f"The program ran {capture.steps.seen} of {order['steps']} steps. The last one was captured.")
    mode: Mode = "training" if capture.trained else "inference"
    facts = {"program": Path(program[0]).name, "device": place.title, "torch": torch.__version__}
    settings = {**facts, "notes": list(notes), **capture.finished.facts}
    Workload(f"{order['name']}-{mode}", mode, capture.finished.uses, capture.finished.layers, settings).write(
        Path(order["answer"])
    )
    return {}


def _end_after(seen: int, steps: int) -> None:
    if seen >= steps:
        raise StepsDone


def _run(program: list[str]) -> dict[str, Any] | None:
    """Run the program. Return a description of its error; None if it ended or took its steps."""
    try:
        run_as_main(program)
    except StepsDone:
        return None
    except SystemExit as error:
        if error.code in (None, 0):
            return None
        return {
            "message": f"the program failed with exit status {error.code}",
            "hint": "Run the program without gpuledger first",
        }
    except BaseException as error:
        frames = describe_failure(error)
        words = frames["message"].splitlines()[0] if frames["message"] else ""
        return {"place": frames["place"], "message": f"{frames['kind']}: {words}"}
    return None


def _why_nothing(capture: Capture, title: str) -> dict[str, Any]:
    if not capture.steps.seen:
        return {
            "message": "no training step was seen",
            "hint": "Check that the program calls an optimizer's step(), or its model",
        }
    return {"message": f"did not use {title}", "hint": "Move the model there with .to(), or capture with --gpu cpu"}


if __name__ == "__main__":
    sys.exit(serve_job(follow))
