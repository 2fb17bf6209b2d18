"""A captured model once more, so that it can be measured as a whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from gpuledger.errors import InputError
from gpuledger.operators.captures import asked_for
from gpuledger.operators.models import build_model
from gpuledger.operators.place import Place
from gpuledger.operators.steps import default_inputs, draw_inputs, inference_step, training_step
from gpuledger.operators.wanted import Wanted
from gpuledger.operators.workload import Workload


def step_of(workload: Workload, place: Place) -> Callable[[], Any]:
    """Return what runs the workload's model once on a device, as it was captured.

    Raises:
        InputError: the workload is of a program, not of a model that has a name.
        UsageError: the model or its library is not here.
    """
    settings = workload.settings
    if not isinstance(settings.get("model"), str):
        raise InputError(
            f"{workload.name}: captured from a program, so it cannot be run here", hint="capture it with --model"
        )
    wanted = Wanted(
        settings["model"],
        workload.mode,
        ",".join(settings.get("inputs") or ()) or None,
        weights=settings.get("weights") or "random",
        optimizer=settings.get("optimizer") or "sgd",
        autocast=settings.get("autocast"),
    )
    asked = asked_for(wanted)
    model = build_model(asked.model, asked.weights).to(place.device)
    inputs = draw_inputs(model, asked.inputs or default_inputs(model, asked.batch), place.device)
    is_trained = asked.mode == "training"
    step = training_step(model, inputs, asked.optimizer) if is_trained else inference_step(model, inputs)
    return _under_autocast(step, place, asked.autocast) if asked.autocast else step


def _under_autocast(step: Callable[[], Any], place: Place, name: str | None) -> Callable[[], Any]:
    device = place.device.partition(":")[0]

    def run() -> Any:
        with torch.autocast(device, dtype=getattr(torch, name)) if name else nullcontext():
            return step()

    return run
