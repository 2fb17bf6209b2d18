"""The work that a calibration runs on the GPU, piece by piece, in a separate process and never in the recorded one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpuledger.cards.card import Card, CardQuantity, torch_uuid
from gpuledger.cards.opening import open_cards
from gpuledger.errors import NoDeviceError

Piece = tuple[str, bool, Callable[[], Any]]


def read_card(device_idx: int = 0) -> tuple[tuple[str, str, str, str], list[tuple[str, bool, int]]]:
    """Return ``(card, driver, torch, CUDA versions)`` and ``(piece, backward, bytes)`` after each piece of work.

    The bytes are cumulative and exclude what the caching allocator reserved.

    Raises:
        NoDeviceError: no GPU, no driver, or the driver does not report the bytes of this process.

    Source: the driver's bytes of this process minus the allocator's reserved bytes, exact to the driver's 2 MiB pages.
    """
    if not torch.cuda.is_available():
        raise NoDeviceError(
            "calibration: PyTorch has no CUDA device here", hint="Run gpuledger doctor to see what is missing"
        )
    properties = torch.cuda.get_device_properties(device_idx)
    card = open_cards().find(torch_uuid(properties.uuid))
    if card is None:
        raise NoDeviceError(f"calibration: NVML does not list the GPU that PyTorch uses, {properties.name}")
    readings = []
    with torch.cuda.device(device_idx):
        for name, backward, run in pieces():
            run()
            torch.cuda.synchronize()
            reserved_bytes = torch.cuda.memory_reserved(device_idx)
            readings.append((name, backward, own_bytes(card) - reserved_bytes))
    versions = (properties.name, card.driver_version, torch.__version__, str(torch.version.cuda))
    return versions, readings


def own_bytes(card: Card) -> int:
    """Return the GPU memory of this process in bytes, as reported by the driver.

    Raises:
        NoDeviceError: the driver does not report it, or this process cannot be distinguished from others.
    """
    processes = card.read_processes()
    mine = [held for pid, held in processes or () if pid == os.getpid()]
    if not mine and processes and len(processes) == 1:
        mine = [processes[0][1]]  # in a container the driver can report the host's process ids
    if not mine:
        reason = card.why_missing(CardQuantity.PROCESSES) if processes is None else None
        why = f": {reason}" if reason else ""
        raise NoDeviceError(f"calibration: the driver does not list this process{why}")
    if mine[0] is None:
        raise NoDeviceError("calibration: the driver does not report the memory of processes")
    return mine[0]


def pieces() -> Iterator[Piece]:
    """Yield ``(name, backward, run)``: forward work first, then its backward pass and an optimizer step."""
    matrix = torch.randn(512, 512, requires_grad=True)
    layer, convolution, normalization = nn.Linear(512, 512), nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
    losses: list[torch.Tensor] = []
    on_card: dict[str, torch.Tensor] = {}

    def first_kernel() -> None:
        on_card["matrix"] = matrix.detach().cuda().requires_grad_()
        (on_card["matrix"] * 2 + 1).relu().sum().item()
        for module in (layer, convolution, normalization):
            module.cuda()

    def multiply() -> None:
        x = on_card["matrix"]
        losses.append((x @ x).sum() + layer(x).sum() + torch.bmm(x[None], x[None]).sum())
        losses.append((x.bfloat16() @ x.bfloat16()).float().sum())

    def normalize() -> None:
        labels = torch.randint(512, (512,), device="cuda")
        normed = F.dropout(F.gelu(F.layer_norm(on_card["matrix"], (512,))), 0.1)
        losses.append(F.cross_entropy(normed.softmax(-1), labels))

    def attend() -> None:
        for dtype in (torch.bfloat16, torch.float32):
            q = torch.randn(2, 8, 256, 64, device="cuda", dtype=dtype, requires_grad=True)
            losses.append(F.scaled_dot_product_attention(q, q, q, is_causal=True).float().sum())

    def convolve() -> None:
        images = torch.randn(8, 16, 64, 64, device="cuda")
        losses.append(F.max_pool2d(normalization(convolution(images)).relu(), 2).sum())

    def backward() -> None:
        torch.stack(losses).sum().backward()

    def optimize() -> None:
        torch.optim.AdamW([*layer.parameters(), *convolution.parameters()]).step()

    yield "context and first kernels", False, first_kernel
    yield "matrix products", False, multiply
    yield "softmax, normalization, loss", False, normalize
    yield "attention", False, attend
    yield "convolution", False, convolve
    yield "backward pass", True, backward
    yield "optimizer", True, optimize
