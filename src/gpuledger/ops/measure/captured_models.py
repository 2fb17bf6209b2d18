"""Create a captured model again, to measure it as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger.errors import InputError
from gpuledger.ops.measure.measured_device import Device
from gpuledger.ops.workloads.captures import asked_for, step_of_model
from gpuledger.ops.workloads.models import build_model, refuse_code_of_file
from gpuledger.ops.workloads.steps import default_inputs, draw_inputs
from gpuledger.ops.workloads.workload import Workload
from gpuledger.ops.workloads.workload_spec import WorkloadSpec


def step_of(workload: Workload, place: Device, *, trusted: bool = False) -> Callable[[], Any]:
    """Return a function that runs one step of the workload's model on a device.

    Args:
        workload: The workload, usually read from a file.
        place: The device.
        trusted: Allow code that the workload names, see
            :func:`gpuledger.ops.workloads.models.refuse_code_of_file`.

    Raises:
        InputError: the workload is of a program, not of a named model, or it names code to run.
        UsageError: the model does not exist, or its library is not installed.
    """
    settings = workload.settings
    if not isinstance(settings.get("model"), str):
        raise InputError(
            f"{workload.name}: cannot run as a whole, because it was captured from a program",
            hint="Capture it by name: gpuledger ops capture --model NAME",
        )
    wanted = WorkloadSpec(
        settings["model"],
        workload.mode,
        ",".join(settings.get("inputs") or ()) or None,
        weights=settings.get("weights") or "random",
        optimizer=settings.get("optimizer") or "sgd",
        autocast=settings.get("autocast"),
    )
    asked = asked_for(wanted)
    if not trusted:
        refuse_code_of_file(asked.model, asked.weights, f"workload {workload.name}")
    model = build_model(asked.model, asked.weights).to(place.device)
    inputs = draw_inputs(model, asked.inputs or default_inputs(model, asked.batch), place.device)
    return step_of_model(model, inputs, asked, place.device)
