"""Capturing the operators of a step, from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpuledger.errors import InputError
from gpuledger.ops.workloads.captures import CPU, CUDA, CapturedDevice, capture_step
from gpuledger.ops.workloads.workload import Workload


def capture(step: Callable[[], Any], *, name: str = "step", device: str | None = None) -> Workload:
    """Return what the second of two calls of ``step`` is made of.

    Args:
        step: Takes one step, of training or of inference.
        name: Of the workload.
        device: ``cuda`` or ``cpu``. Without it, operators are captured on the GPU if there is one.

    Raises:
        InputError: the step did nothing on that device, or uses ``torch.compile``.
    """
    chosen = device or (CUDA if torch.cuda.is_available() else CPU)
    place = CapturedDevice(chosen, torch.cuda.get_device_name() if chosen == CUDA else "CPU")
    tally = capture_step(step, place)
    if not tally.uses:
        raise InputError(
            f"{name}: the step did not use {chosen}",
            hint="Name the device that the step uses: ops.capture(step, device=…)",
        )
    settings = {"device": place.title, "torch": torch.__version__, "notes": [], **tally.facts}
    return Workload(name, "training" if tally.trained else "inference", tally.uses, tally.layers, settings)
