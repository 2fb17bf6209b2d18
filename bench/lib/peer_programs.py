"""The trainings that are watched side by side: three plain models, and one small model with planted facts.

The planted facts: the layer ``wide`` holds most and takes most time, and every step sleeps. In variants
nothing sleeps, one step after the recorded ones allocates more than the others, or a list keeps a tensor of every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MIB = 1 << 20
WINDOW = 6
"""Steps inside each tool: the three of memory and the three of time that ``gpuledger run`` records by default."""
STEPS = 12
LEAK_STEPS = 48
"""More than the 44 steps after which gpuledger tells of growth."""
SLEEP_S = 0.1
"""Long against what else a GPU waits for in a step of this model, some 10 ms under a tool."""
SPIKE_STEP, SPIKE_BYTES = 9, 64 * MIB
LEAK_BYTES, CRASH_BYTES = 2 * MIB, 32 * MIB
CRASH_LIMIT_BYTES = 1600 * MIB
"""So much that memory runs out after step 24: from then on, gpuledger tells of growth on a GPU."""
ROWS, WIDTH, WIDE = 1024, 256, 4096
LONG_BATCHES = 8
"""Batches of the other programs in one step of the program of which energy is asked."""
PLANTED_LAYER = "wide"


class Block(nn.Module):
    """A residual block of ResNet-18."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        plain = before == after and stride == 1
        self.skip: nn.Module = (
            nn.Identity()
            if plain
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's output."""
        inner = F.relu(self.bn1(self.conv1(images)))
        return F.relu(self.bn2(self.conv2(inner)) + self.skip(images))


def _resnet18() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for after in (64, 128, 256, 512):
        layers += [Block(before, after, 1 if after == 64 else 2), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Wide(nn.Module):
    """A projection to many features, which are then averaged in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDE)

    def forward(self, values: Tensor) -> Tensor:
        """Return as many features as came in."""
        return F.gelu(self.project(values)).view(len(values), WIDTH, -1).mean(2)  # planted: line


class Planted(nn.Module):
    """Three narrow layers around a wide one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.wide = Wide()
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        """Return the last layer's output."""
        return self.last(self.wide(self.first(values)))  # type: ignore[no-any-return]


@dataclass
class Program:
    """A model, its optimizer, and a function that takes one step, counted from 1."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    take_step: Callable[[int], None]
    steps: int = STEPS
    kept: list[Tensor] = field(default_factory=list)


def _plain(model: nn.Module, batch: Callable[[], tuple[Tensor, Tensor]]) -> Program:
    optimizer = torch.optim.Adam(model.parameters())

    def take_step(_step: int) -> None:
        values, labels = batch()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(values).flatten(0, -2), labels.flatten()).backward()
        optimizer.step()

    return Program(model, optimizer, take_step)


def same(device: str, *batch: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
    """Return a loader of one batch, copied to ``device`` in each step: making random numbers would take most of it."""
    values, labels = (one.cpu() for one in batch)
    return lambda: (values.to(device), labels.to(device))


def resnet18(device: str, scale: int) -> Program:
    """Return ResNet-18 on small images."""
    count, pixels = 2 * scale, 64 if device == "cpu" else 224
    return _plain(
        _resnet18().to(device),
        same(device, torch.randn(count, 3, pixels, pixels), torch.randint(1000, (count,))),
    )


def gpt(device: str, scale: int) -> Program:
    """Return a small language model of torch's own Transformer layers."""
    from models import TransformerLanguageModel

    length = 64 if device == "cpu" else 256
    model = TransformerLanguageModel(2000, 256, 4, 4, length).to(device)
    tokens = torch.randint(2000, (2 * scale, length))
    return _plain(model, same(device, tokens, tokens))


def lstm(device: str, scale: int) -> Program:
    """Return a language model of two LSTM layers."""
    from models import LstmLanguageModel

    model = LstmLanguageModel(2000, 256, 256).to(device)
    tokens = torch.randint(2000, (4 * scale, 32))
    return _plain(model, same(device, tokens, tokens))


def convolutions(device: str, scale: int) -> Program:
    """Return an autoencoder of convolutions."""
    width, pixels = 32, 32 if device == "cpu" else 128
    down = [nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU()]
    up = [nn.ConvTranspose2d(2 * width, width, 2, 2), nn.ReLU(), nn.ConvTranspose2d(width, 10, 2, 2), nn.Flatten(2)]
    model = nn.Sequential(*down, *up).to(device)
    images, labels = torch.randn(2 * scale, 3, pixels, pixels), torch.randint(pixels * pixels, (2 * scale, 10))
    return _plain(model, same(device, images, labels))


def perceptron(device: str, scale: int) -> Program:
    """Return a perceptron of eight layers."""
    width = 512 if device == "cpu" else 2048
    layers = [layer for _ in range(7) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(device)
    count = 32 * scale
    return _plain(model, same(device, torch.randn(count, width), torch.randint(10, (count,))))


def long(device: str, scale: int) -> Program:
    """Return the planted model with large batches that are made on the device, so that no step waits for the CPU.

    The speed of a shared host changes from moment to moment, and with it the energy of a step that waits for it.
    """
    model = Planted().to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def take_step(_step: int) -> None:
        values = torch.randn(LONG_BATCHES * ROWS * scale, WIDTH, device=device)
        optimizer.zero_grad(set_to_none=True)
        model(values).square().mean().backward()
        optimizer.step()

    return Program(model, optimizer, take_step)


def planted(
    device: str, scale: int, *, leak_bytes: int = 0, compiled: bool = False, sleeps: bool = False, spikes: bool = False
) -> Program:
    """Return the model with planted facts; ``leak_bytes`` are kept in every step, ``compiled`` compiles it."""
    model = Planted().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    called = torch.compile(model, backend="inductor" if device == "cuda" else "aot_eager") if compiled else model
    program = Program(model, optimizer, lambda _step: None)

    def take_step(step: int) -> None:
        if step == SPIKE_STEP and spikes:
            program.kept.append(torch.zeros(SPIKE_BYTES, dtype=torch.uint8, device=device))
        values = torch.randn(ROWS * scale, WIDTH).to(device)
        optimizer.zero_grad(set_to_none=True)
        called(values).square().mean().backward()
        optimizer.step()
        if leak_bytes:
            program.kept.append(torch.zeros(leak_bytes, dtype=torch.uint8, device=device))  # planted: leak
        else:
            program.kept.clear()
        if sleeps:
            time.sleep(SLEEP_S)

    program.take_step = take_step
    program.steps = LEAK_STEPS if leak_bytes else STEPS
    return program


def build(name: str, device: str, scale: int) -> Program:
    """Return the program of a name on ``device``; ``scale`` multiplies the batch."""
    if name == "awake":
        return planted(device, scale)
    if name == "long":
        return long(device, scale)
    if name == "planted":
        return planted(device, scale, sleeps=True)
    if name == "spike":
        return planted(device, scale, spikes=True)
    if name == "leak":
        return planted(device, scale, leak_bytes=LEAK_BYTES)
    if name == "crash":
        torch.cuda.set_per_process_memory_fraction(CRASH_LIMIT_BYTES / torch.cuda.mem_get_info()[1])
        return planted(device, scale, leak_bytes=CRASH_BYTES)
    if name == "compiled":
        return planted(device, scale, compiled=True)
    makers = {"resnet18": resnet18, "gpt": gpt, "lstm": lstm, "convolutions": convolutions, "perceptron": perceptron}
    return makers[name](device, scale)


def line_of(mark: str) -> int:
    """Return the number of the line with the comment ``planted: MARK``."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# planted: {mark}"))


def planted_facts(rows: int = ROWS) -> dict[str, float]:
    """Return what is known of a step of the planted model without running it: bytes by category, bounds, FLOPs."""
    weights = sum(before * after + after for before, after in ((WIDTH, WIDTH), (WIDTH, WIDE), (WIDTH, WIDTH))) * 4
    narrow, wide = rows * WIDTH * 4, rows * WIDE * 4
    held = 3 * weights + 3 * narrow + wide  # weights, two states of Adam, and what the backward pass needs
    forward = 2 * rows * WIDTH * (WIDTH + WIDE + WIDTH)
    return {
        "weight_bytes": weights,
        "optimizer_state_bytes": 2 * weights,
        "peak_least_bytes": held,
        "peak_most_bytes": held + weights + 3 * wide,
        "flops": 3 * forward - 2 * rows * WIDTH * WIDTH,  # the input needs no gradient
        "wide_flops": 3 * 2 * rows * WIDTH * WIDE,
        "addmm_flops": forward,
        "spike_bytes": SPIKE_BYTES,
        "sleep_ms": SLEEP_S * 1e3,
    }
