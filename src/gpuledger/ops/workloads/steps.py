"""One step of a named model: its inputs, its loss, its optimizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpuledger.errors import InputError, UsageError
from gpuledger.ops.workloads.describe import name_of

DEFAULT_BATCH = 32
DEFAULT_TOKENS = 128
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
}
AUTOCAST_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
INPUT_DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
"""Supported dtypes of inputs; torch has others that cannot be filled."""
_INPUT = re.compile(r"(\d+(?:x\d+)*)(?::(\w+))?")


@dataclass(frozen=True)
class InputSize:
    """One input of a model."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def text(self) -> str:
        """Return the size as text."""
        plain = "x".join(map(str, self.shape))
        return plain if self.dtype == torch.float32 else f"{plain}:{name_of(self.dtype)}"


def parse_inputs(text: str) -> tuple[InputSize, ...]:
    """Return the inputs of one call: ``32x3x224x224``, or ``8x128:int64,8x128:int64`` for a model with two inputs.

    Raises:
        UsageError: it is not a list of sizes.
    """
    return tuple(_parse_input(text, part) for part in text.split(","))


def _parse_input(text: str, part: str) -> InputSize:
    found = _INPUT.fullmatch(part.strip())
    if not found:
        raise UsageError(f"--input {text}: not an input size", hint="For example --input 32x3x224x224, or 8x128:int64")
    dtype = getattr(torch, found[2] or "float32", None)
    if dtype not in INPUT_DTYPES:
        raise UsageError(
            f"--input {text}: unsupported dtype {found[2]}", hint="Use one of " + ", ".join(map(name_of, INPUT_DTYPES))
        )
    shape = tuple(int(n) for n in found[1].split("x"))
    if not all(shape):
        raise UsageError(f"--input {text}: sizes must be 1 or more")
    return InputSize(shape, dtype)


def default_inputs(model: nn.Module, batch: int) -> tuple[InputSize, ...]:
    """Return the inputs from a model's own configuration; images of 224 pixels by default."""
    timm_size = getattr(model, "default_cfg", {}).get("input_size")
    if timm_size:
        return (InputSize((batch, *timm_size), torch.float32),)
    if getattr(model, "main_input_name", None) == "input_ids":
        return (InputSize((batch, DEFAULT_TOKENS), torch.int64),)
    pixels = getattr(getattr(model, "config", None), "image_size", 224)
    return (InputSize((batch, 3, pixels, pixels) if isinstance(pixels, int) else (batch, 3, *pixels), torch.float32),)


def draw_inputs(model: nn.Module, sizes: Sequence[InputSize], device: str) -> list[torch.Tensor]:
    """Return inputs of these sizes: normal values, or indices within the model's vocabulary."""
    configuration = getattr(model, "config", None)
    top = int(getattr(configuration, "vocab_size", 0) or _smallest_table(model))
    return [
        torch.randint(0, top, size.shape, dtype=size.dtype, device=device)
        if not size.dtype.is_floating_point
        else torch.randn(size.shape, dtype=size.dtype, device=device)
        for size in sizes
    ]


def _smallest_table(model: nn.Module) -> int:
    return min((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=2)


def precision_of(autocast: str | None, device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that opens the context of a forward pass: autocast, or an empty one.

    Raises:
        UsageError: no such dtype.
    """
    if not autocast:
        return nullcontext
    if autocast not in AUTOCAST_DTYPES:
        raise UsageError(f"--autocast {autocast}: unsupported dtype", hint="Use float16 or bfloat16")
    return partial(torch.autocast, device.partition(":")[0], dtype=AUTOCAST_DTYPES[autocast])


def inference_step(
    model: nn.Module, inputs: Sequence[torch.Tensor], precision: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> Callable[[], Any]:
    """Return a function that runs the model once in evaluation mode."""
    model.eval()

    def step() -> Any:
        with torch.no_grad(), precision():
            return model(*inputs)

    return step


def training_step(
    model: nn.Module,
    inputs: Sequence[torch.Tensor],
    optimizer_name: str,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Callable[[], Any]:
    """Return a function that runs one training step: forward and loss in ``precision``, backward, optimizer."""
    model.train()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("the model has no parameters to train", hint="Capture it without --train")
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with precision():
            loss = loss_of(model(*inputs))
        loss.backward()
        optimizer.step()

    return step


def loss_of(output: Any) -> torch.Tensor:
    """Return a loss for a model's output: cross entropy of logits, otherwise the mean.

    Raises:
        InputError: the output cannot be differentiated.
    """
    losses = [_loss(tensor) for tensor in _outputs(output) if tensor.is_floating_point() and tensor.requires_grad]
    if not losses:
        raise InputError(
            "the model's output has no gradient, so it cannot be trained", hint="Capture it without --train"
        )
    total = losses[0]
    for loss in losses[1:]:
        total = total + 0.3 * loss  # auxiliary heads, weighted as in GoogLeNet's paper
    return total


def _outputs(output: Any) -> list[torch.Tensor]:
    """Return the output tensors for the loss: logits first, or the first tensor of a dictionary."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        tensors = [value for value in output.values() if isinstance(value, torch.Tensor)]
        return [output["logits"]] if "logits" in output else tensors[:1]
    return [value for value in output if isinstance(value, torch.Tensor)] if isinstance(output, tuple | list) else []


def _loss(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() not in (2, 3):
        return tensor.float().mean()
    logits = tensor.flatten(0, -2)
    targets = torch.randint(0, logits.shape[-1], logits.shape[:1], device=tensor.device)
    return F.cross_entropy(logits, targets)
