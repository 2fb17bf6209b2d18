"""Each change of a program on the simulated GPU needs the memory of the program that is written with that change."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.simulate.advice.changes import Changes, repeated_blocks
from gpuledger.simulate.advice.combination import ACCUMULATED, EIGHT_BIT, FUSED, SMALLER, Combination
from gpuledger.simulate.estimate.follow import follow

pytestmark = pytest.mark.torch
MOST_ERROR = 0.001
"""Largest relative difference between a changed program and a program that is written with the change."""
STEPS = 3


class Block(nn.Module):
    """A residual block with a hidden layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU())
        self.out = nn.Linear(4 * width, width)

    def forward(self, data: torch.Tensor) -> Any:
        return data + self.out(self.inner(data))


class Layers(nn.Module):
    """Blocks in a list, with a classifier. With ``is_checkpointed``, it is written with checkpoints."""

    is_checkpointed = False

    def __init__(self, first: nn.Module, blocks: list[nn.Module], last: nn.Module) -> None:
        super().__init__()
        self.first, self.blocks, self.last = first, nn.ModuleList(blocks), last

    def forward(self, data: torch.Tensor) -> Any:
        data = self.first(data)
        for block in self.blocks:
            data = checkpoint(block, data, use_reentrant=False) if self.is_checkpointed else block(data)
        return self.last(data)


class Convolution(nn.Module):
    """A residual block of convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, data: torch.Tensor) -> Any:
        return data + self.second(F.relu(self.norm(self.first(data))))


class Gated(nn.Module):
    """A recurrent layer with a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.gate = nn.GRU(width, width, batch_first=True), nn.Linear(width, width)

    def forward(self, data: torch.Tensor) -> Any:
        return data + self.layer(data)[0] * torch.sigmoid(self.gate(data))


class Experts(nn.Module):
    """Two experts with a soft gate; the list of experts is inside a repeated block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.experts, self.gate = nn.ModuleList([Block(width), Block(width)]), nn.Linear(width, 2)

    def forward(self, data: torch.Tensor) -> Any:
        scores = self.gate(data).softmax(-1)
        return sum(scores[..., [place]] * expert(data) for place, expert in enumerate(self.experts))


def layers() -> Layers:
    return Layers(nn.Linear(64, 256), [Block(256) for _ in range(4)], nn.Linear(256, 100))


def images() -> Layers:
    first = nn.Conv2d(3, 64, 3, padding=1)
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return Layers(first, [Convolution(64) for _ in range(3)], last)


def texts() -> Layers:
    made = [nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(3)]
    return Layers(nn.Embedding(1000, 128), list(made), nn.Linear(128, 1000))


def sequences() -> Layers:
    return Layers(nn.Linear(64, 128), [Gated(128) for _ in range(2)], nn.Linear(128, 50))


def experts() -> Layers:
    return Layers(nn.Linear(64, 256), [Experts(256) for _ in range(2)], nn.Linear(256, 100))


MODELS: dict[str, tuple[Callable[[], Layers], Callable[[int], torch.Tensor]]] = {
    "layers": (layers, lambda count: torch.zeros(count, 32, 64)),
    "images": (images, lambda count: torch.zeros(count, 3, 32, 32)),
    "texts": (texts, lambda count: torch.zeros(count, 64, dtype=torch.int64)),
    "sequences": (sequences, lambda count: torch.zeros(count, 40, 64)),
    "experts": (experts, lambda count: torch.zeros(count, 32, 64)),
}
BATCH, ITEMS = 32, 512


class AdamIn8Bits(torch.optim.Optimizer):
    """An optimizer as bitsandbytes has it: two states of bytes, scales per 256 elements, and two tables."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.tables = [torch.zeros(256, device="cuda") for _ in range(2)]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            state, count = self.state[parameter], parameter.numel()
            if parameter.grad is None or state:
                continue
            if count < 4096:
                state.update(one=torch.zeros_like(parameter).float(), two=torch.zeros_like(parameter).float())
                continue
            for name in ("one", "two"):
                state[name] = torch.zeros(parameter.shape, dtype=torch.uint8, device="cuda")
                state[f"scale_{name}"] = torch.zeros(-(-count // 256), device="cuda")


@dataclass(frozen=True)
class Written:
    """How a program is written; the default is the unchanged one."""

    batch: int = BATCH
    accumulated: int = 1
    checkpoint: bool = False
    autocast: bool = False
    optimizer: str = ""


def make_optimizer(model: nn.Module, kind: str) -> Any:
    if kind == EIGHT_BIT:
        return AdamIn8Bits(model.parameters())
    return torch.optim.AdamW(model.parameters(), fused=True if kind == FUSED else None)


def train(name: str, written: Written) -> None:
    build, inputs = MODELS[name]
    model = build().to("cuda")
    model.is_checkpointed = written.checkpoint
    optimizer = make_optimizer(model, written.optimizer)
    loader = DataLoader(TensorDataset(inputs(ITEMS)), written.batch)
    optimizer.zero_grad()
    for place, (data,) in enumerate(loader):
        with torch.autocast("cuda", torch.bfloat16) if written.autocast else nullcontext():
            found = model(data.to("cuda"))
        loss = found.float().pow(2).mean() / written.accumulated
        del found
        loss.backward()
        if (place + 1) % written.accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()


def peaks_of(
    run: Callable[[], None], directory: Path, changes: Changes | None = None, steps: int | None = STEPS
) -> tuple[int, int, int]:
    """Return the peaks of reserved bytes and of requests, and the number of steps."""
    from gpuledger.model.journal.reading import read_journal

    settings = asdict(AllocatorSettings())
    order = {"card": "a100-80gb", "steps": steps, "settings": settings, "run_directory": str(directory)}
    gc.collect()
    found = follow(order, run, None, changes)
    assert found["ended"] == ("steps" if steps else "exit"), found
    counters = read_journal(directory / "rank-0" / "journal").tables["counters"]
    return found["peak_reserved_bytes"], int(counters["peak_allocated_bytes"].max()), found["steps"]


CASES = {
    "checkpoint": (Combination(checkpoint=True), Written(checkpoint=True)),
    "autocast": (Combination(autocast=True), Written(autocast=True)),
    "fused": (Combination(optimizer=FUSED), Written(optimizer=FUSED)),
    "8-bit": (Combination(optimizer=EIGHT_BIT), Written(optimizer=EIGHT_BIT)),
    "smaller": (Combination(divisor=4, parts=SMALLER), Written(batch=8)),
    "accumulated": (Combination(divisor=4, parts=ACCUMULATED), Written(batch=8, accumulated=4)),
    "all": (
        Combination(checkpoint=True, autocast=True, optimizer=EIGHT_BIT, divisor=2, parts=ACCUMULATED),
        Written(batch=16, accumulated=2, checkpoint=True, autocast=True, optimizer=EIGHT_BIT),
    ),
}


def changes_of(combination: Combination) -> Changes:
    return Changes({**asdict(combination), "dtype": "bfloat16", "in_arguments": False})


PAIRS = [
    (case, name)
    for case, (combination, _) in CASES.items()
    for name in (MODELS if combination.checkpoint or combination.autocast else ("sequences", "experts"))
]
"""Every model where the change depends on its layers; of the others, the two that find every planted defect."""


@pytest.mark.parametrize(("case", "name"), PAIRS)
def test_a_changed_program_needs_what_the_written_one_needs(case: str, name: str, tmp_path: Path) -> None:
    combination, written = CASES[case]
    changes = changes_of(combination)
    changed = peaks_of(partial(train, name, Written()), tmp_path / "changed", changes)
    expected = peaks_of(partial(train, name, written), tmp_path / "written")
    assert changed[2] == expected[2] == STEPS
    assert changed[0] == pytest.approx(expected[0], rel=MOST_ERROR)
    assert changed[1] == pytest.approx(expected[1], rel=MOST_ERROR)
    assert changes.found()["batch"] == BATCH
    assert changes.found()["blocks"] == (len(MODELS[name][0]().blocks) if combination.checkpoint else 0)
    assert bool(changes.found()["optimizers"]) == bool(combination.optimizer)


def test_everything_is_restored(tmp_path: Path) -> None:
    before = (nn.Module.__call__, nn.Module.zero_grad, torch.optim.Optimizer.__init__, DataLoader.__init__)
    every = Combination(checkpoint=True, autocast=True, optimizer=FUSED, divisor=2, parts=ACCUMULATED)
    peaks_of(partial(train, "layers", Written()), tmp_path / "changed", changes_of(every))
    assert (nn.Module.__call__, nn.Module.zero_grad, torch.optim.Optimizer.__init__, DataLoader.__init__) == before


def test_flops_are_counted_by_dtype(tmp_path: Path) -> None:
    """Three products per layer and step. In backward, a checkpoint repeats a block up to its last saved tensor.

    That is the first of its two products.
    """
    plain, cast, again = (
        changes_of(one) for one in (Combination(), Combination(autocast=True), Combination(checkpoint=True))
    )
    for place, changes in enumerate((plain, cast, again)):
        peaks_of(partial(train, "layers", Written()), tmp_path / str(place), changes)
    rows, width = BATCH * 32, 256
    inside = 4 * 2 * 2 * rows * width * 4 * width
    outside = 2 * rows * width * (64 + 100)
    first_input = 2 * rows * width * 64  # the data needs no gradient
    assert plain.work.flops == {"float32": STEPS * (3 * (inside + outside) - first_input)}
    assert cast.work.flops == {"bfloat16": plain.work.flops["float32"]}
    assert again.work.flops == {"float32": plain.work.flops["float32"] + STEPS * inside // 2}


def test_flops_are_those_of_the_training_steps(tmp_path: Path) -> None:
    """What follows them runs more or less often, as its time and memory are limited."""

    def run(*, evaluates: bool) -> None:
        model = layers().to("cuda")
        train_on(model)
        with torch.no_grad():
            for _ in range(4 if evaluates else 0):
                model(torch.ones(2 * BATCH, 32, 64, device="cuda"))

    def train_on(model: Layers) -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4 * STEPS):
            model(torch.ones(BATCH, 32, 64, device="cuda")).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    counted, peaks = [], []
    for evaluates in (False, True):
        changes = changes_of(Combination())
        peaks.append(peaks_of(partial(run, evaluates=evaluates), tmp_path / str(evaluates), changes, steps=None)[1])
        counted.append(changes.work.flops)
    assert counted[0] == counted[1]
    assert peaks[0] <= peaks[1]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Linear(8, 8), 0),
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), 0),
        (nn.Sequential(Block(8), Block(8), nn.Linear(8, 8)), 2),
        (nn.ModuleDict({"a": nn.Sequential(Block(8), Block(8)), "b": Block(8)}), 2),
        (nn.ModuleList([Experts(8), Experts(8), Experts(8)]), 3),
        (nn.ModuleList([nn.ModuleList([Block(8)] * 2), nn.ModuleList([Convolution(8), Convolution(8)])]), 2),
    ],
)
def test_repeated_blocks_are_parts_of_one_list(model: nn.Module, expected: int) -> None:
    assert len(repeated_blocks(model)) == expected
