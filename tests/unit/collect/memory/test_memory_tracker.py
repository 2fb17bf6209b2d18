"""PyTorch's tests of its own memory tracker (``test_mem_tracker.py``), with our recording of the same programs."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from recorded import Block, record_own
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.torch

PEAK_FRAC = 0.02
"""PyTorch's tests allow 10 %."""
MARK_BYTES = 7_777
"""Size of the tensors that mark an instant: no other tensor has as many bytes."""


class Blocks(nn.Module):
    """The network of PyTorch's test with checkpointing, at a quarter of its width and with fewer rows."""

    def __init__(self, kept: int, count: int = 4) -> None:
        super().__init__()
        self.kept = kept
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output; the blocks after the first ``kept`` are computed again in backward."""
        for place, block in enumerate(self.blocks):
            x = block(x) if place < self.kept else checkpoint(block, x, use_reentrant=False)
        return x


def plain() -> tuple[nn.Module, Tensor]:
    layers = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU())]
    return nn.Sequential(*layers).bfloat16(), torch.randn(16, 128, dtype=torch.bfloat16)


def checkpointed() -> tuple[nn.Module, Tensor]:
    return Blocks(kept=1), torch.randn(2, 128, 256)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, between: Callable[[], None]) -> None:
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        between()


def by_tracker(make: Callable[[], tuple[nn.Module, Tensor]]) -> int:
    """Return the tracker's bytes at the peak."""
    model, x = make()
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    tracker = MemTracker()
    tracker.track_external(model, optimizer, x)
    with tracker:
        train(model, optimizer, x, tracker.reset_mod_stats)
    total = int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
    for parameter in model.parameters():  # the tracker keeps the last model that it has tracked
        parameter.data.untyped_storage().resize_(0)
    return total


def alive_at(blocks: tuple[Block, ...], index: int) -> list[Block]:
    return [one for one in blocks if one.alloc_index <= index and (one.free_index is None or one.free_index > index)]


@pytest.mark.parametrize("make", [plain, checkpointed], ids=lambda make: make.__name__)
def test_the_peak_is_that_of_torchs_tracker(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    theirs = by_tracker(make)
    gc.collect()

    def program(_: object) -> object:
        model, x = make()
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)
        train(model, optimizer, x, lambda: None)
        return model, optimizer, x

    blocks = record_own(program).blocks
    sizes = [sum(block.bytes for block in alive_at(blocks, one.alloc_index)) for one in blocks]
    assert max(sizes) == pytest.approx(theirs, rel=PEAK_FRAC)


def test_weights_gradients_and_states_are_the_tensors_at_four_instants() -> None:
    """PyTorch's test allows 10 %; here each category has exactly the bytes of its tensors."""
    expected: list[dict[str, int]] = []

    def program(_: object) -> object:
        layers = [layer for _ in range(3) for layer in (nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128), nn.GELU())]
        model, x = nn.Sequential(*layers), torch.randn(16, 128)
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)

        def mark() -> None:
            parameters = list(model.parameters())
            states = [value for state in optimizer.state.values() for value in state.values()]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            bytes_of: dict[str, list[Tensor]] = {
                "weight": [*parameters],
                "gradient": gradients,
                "optimizer_state": states,
            }
            expected.append({name: sum(one.nbytes for one in tensors) for name, tensors in bytes_of.items()})
            torch.empty(MARK_BYTES, dtype=torch.uint8)

        mark()
        model(x).sum().backward()
        mark()
        optimizer.step()
        mark()
        optimizer.zero_grad()
        mark()
        return model, optimizer, x

    blocks = record_own(program).blocks
    marks = [block for block in blocks if block.bytes == MARK_BYTES]
    found = []
    for mark in marks:
        sizes: Counter[str] = Counter()
        for block in alive_at(blocks, mark.alloc_index):
            sizes[block.category] += block.bytes
        found.append({name: sizes[name] for name in ("weight", "gradient", "optimizer_state")})
    assert found == expected
    assert [bool(one["gradient"]) for one in found] == [False, True, True, False]
    assert [bool(one["optimizer_state"]) for one in found] == [False, False, True, True]
