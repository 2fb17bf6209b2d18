"""Capture a model or function as a workload, on this machine's device or on a simulated GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.errors import InputError, UsageError
from gpuledger.model.simulated import SIMULATED
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.workloads.capture import Capture, why_compiled
from gpuledger.ops.workloads.card_names import as_on_card
from gpuledger.ops.workloads.models import RANDOM, ModelName, build_model, parse_model, without_initial_weights
from gpuledger.ops.workloads.steps import (
    DEFAULT_BATCH,
    OPTIMIZERS,
    InputSize,
    default_inputs,
    draw_inputs,
    inference_step,
    parse_inputs,
    precision_of,
    training_step,
)
from gpuledger.ops.workloads.tally import Tally
from gpuledger.ops.workloads.workload import Mode, Workload
from gpuledger.ops.workloads.workload_spec import WorkloadSpec
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.dispatch import NotModelledError

CPU = "cpu"
CUDA = "cuda"
TELL_INPUT = "Give the size of the model's input: gpuledger ops capture --input 32x3x224x224"


@dataclass(frozen=True)
class CaptureRequest:
    """A model to capture.

    Attributes:
        model: Name of the model.
        mode: ``inference`` or ``training``.
        batch: Batch size of the model's default inputs; with ``inputs``, that of these.
        inputs: Sizes of the inputs; empty for the default ones.
        weights: ``random``, or a name of the model's library.
        optimizer: ``sgd`` or ``adamw``.
        autocast: A dtype, or None.
    """

    model: ModelName
    mode: Mode = "inference"
    batch: int = DEFAULT_BATCH
    inputs: tuple[InputSize, ...] = ()
    weights: str = RANDOM
    optimizer: str = "sgd"
    autocast: str | None = None


def asked_for(wanted: WorkloadSpec) -> CaptureRequest:
    """Return the model for a specification.

    Raises:
        UsageError: the model's name, a size, the optimizer or the dtype is invalid.
    """
    if wanted.optimizer not in OPTIMIZERS:
        raise UsageError(
            f"--optimizer {wanted.optimizer}: unknown optimizer", hint=f"Use one of {', '.join(OPTIMIZERS)}"
        )
    precision_of(wanted.autocast, CPU)
    return CaptureRequest(
        parse_model(wanted.model),
        wanted.mode,
        wanted.batch,
        parse_inputs(wanted.inputs) if wanted.inputs else (),
        wanted.weights,
        wanted.optimizer,
        wanted.autocast,
    )


class CapturedDevice:
    """The captured device. ``device`` is its name in torch."""

    def __init__(self, device: str, title: str, simulated: SimulatedDevice | None = None) -> None:
        self.device = device
        self.title = title
        self.simulated = simulated

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the device."""
        if self.simulated is not None:
            return self.simulated.holds(tensor)
        return tensor.device.type == self.device

    def renamed(self, key: OperatorKey) -> OperatorKey:
        """Return the key that a call counts as. On a simulated GPU, it is that of the real GPU's operator."""
        return key if self.simulated is None else as_on_card(key)


@contextmanager
def device_named(gpu: str | None, say: Callable[[str], None]) -> Iterator[CapturedDevice]:
    """Provide a device: ``cpu``, a simulated GPU of the catalogue, or None for the GPU of this machine.

    Raises:
        UsageError: the catalogue has no such GPU.
    """
    if gpu == CPU:
        yield CapturedDevice(CPU, "CPU")
        return
    if gpu is None:
        yield CapturedDevice(CUDA, torch.cuda.get_device_name())
        return
    card = find_card(gpu)
    device = SimulatedDevice(card, CachingAllocator(AllocatorSettings()))
    with in_place(device, say):
        yield CapturedDevice(CUDA, f"{card.name}{SIMULATED}", device)


def default_gpu() -> str | None:
    """Return the default for captures: None for the GPU of this machine, or a simulated H200 without one."""
    return None if torch.cuda.is_available() else "h200"


def capture_model(asked: CaptureRequest, gpu: str | None) -> Workload:
    """Return the workload of a model.

    Args:
        asked: The model.
        gpu: ``cpu``, a GPU of the catalogue, or None for the GPU of this machine.

    Raises:
        UsageError: no such model, weights, or GPU.
        InputError: the model cannot be created, does not accept the inputs, or cannot be simulated.
    """
    notes: dict[str, None] = {}
    is_simulated = gpu not in (CPU, None)
    with without_initial_weights() if is_simulated else nullcontext():
        model = build_model(asked.model, RANDOM if is_simulated else asked.weights)
    sizes = asked.inputs or default_inputs(model, asked.batch)
    with device_named(gpu, lambda sentence: notes.setdefault(sentence)) as place:
        model = model.to(place.device)
        inputs = draw_inputs(model, sizes, place.device)
        tally = _followed(lambda: step_of_model(model, inputs, asked, place.device), place, asked)
    return Workload(
        name=name_of_capture(asked, sizes),
        mode=asked.mode,
        uses=tally.uses,
        layers=tally.layers,
        settings={**_settings(asked, sizes), **_facts(place, tally, tuple(notes))},
    )


def name_of_capture(asked: CaptureRequest, sizes: tuple[InputSize, ...]) -> str:
    """Return a workload's name, which is also its file name."""
    words = (asked.model.name, asked.mode, *(size.text for size in sizes), asked.autocast or "")
    return "-".join(word.replace("/", "_").replace(":", "_") for word in words if word)


def step_of_model(
    model: nn.Module, inputs: Sequence[torch.Tensor], asked: CaptureRequest, device: str
) -> Callable[[], Any]:
    """Return a function that runs one step of a model, which is on the device already."""
    precision = precision_of(asked.autocast, device)
    if asked.mode == "inference":
        return inference_step(model, inputs, precision)
    return training_step(model, inputs, asked.optimizer, precision)


def _followed(make_step: Callable[[], Callable[[], Any]], place: CapturedDevice, asked: CaptureRequest) -> Tally:
    """Return the operators of the second of two steps. The first one creates the optimizer's state."""
    torch_log = logging.getLogger(
        "torch._subclasses.fake_tensor"
    )  # it would log a traceback for errors that are reported in one line
    torch_log.addFilter(_no_record)
    try:
        return capture_step(make_step(), place)
    except NotModelledError as error:
        raise InputError(f"{asked.model.text}: {error}", hint="Capture it on a real GPU, without --gpu") from error
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
        words = " ".join(str(error).split())
        raise InputError(f"{asked.model.text}: {type(error).__name__}: {words}", hint=TELL_INPUT) from error
    finally:
        torch_log.removeFilter(_no_record)


def _no_record(_: logging.LogRecord) -> bool:
    return False


def capture_step(step: Callable[[], Any], place: CapturedDevice) -> Tally:
    """Return the operators of the second of two calls of ``step`` on a device.

    Raises:
        InputError: the step uses ``torch.compile``.
    """
    with Capture(place.holds, place.device, renamed=place.renamed) as capture:
        for _ in range(2):
            step()
            capture.mark_step()
    if capture.uncompiled:
        found = why_compiled(capture.uncompiled)
        raise InputError(f"{found['place']}: {found['message']}", hint=found["hint"])
    assert capture.finished is not None
    return capture.finished


def _settings(asked: CaptureRequest, sizes: tuple[InputSize, ...]) -> dict[str, Any]:
    return {
        "model": asked.model.text,
        "inputs": [size.text for size in sizes],
        "batch": sizes[0].shape[0],
        "weights": asked.weights,
        "optimizer": asked.optimizer if asked.mode == "training" else None,
        "autocast": asked.autocast,
    }


def _facts(place: CapturedDevice, tally: Tally, notes: tuple[str, ...]) -> dict[str, Any]:
    return {"device": place.title, "torch": torch.__version__, "notes": list(notes), **tally.facts}
