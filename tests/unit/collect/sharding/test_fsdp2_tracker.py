"""PyTorch's own memory tracker of fully_shard says the same: bytes at the peak, by category."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fake_ranks import fake_ranks
from recorded import Recorded, record_own
from torch import Tensor, distributed, nn

if not distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

pytestmark = pytest.mark.torch

WIDTH, BATCH, LAYERS = 64, 256, 4
ROWS, LENGTH, WORDS = 16, 64, 512
THEIRS = {
    "SHARDED_PARAM": ("sharded_weight",),
    "UNSHARDED_PARAM": ("gathered_weight",),
    "SHARDED_GRAD": ("sharded_gradient",),
    "ACT": ("activation",),
    "ALL_GATHER": ("communication",),
    "REDUCE_SCATTER": ("reduce_scatter",),
    "OPT": ("sharded_optimizer_state", "optimizer_state"),
    "INP": ("input",),
}
"""Their category -> ours. Their other ones together are our gradients, activation gradients and temporaries."""
Maker = Callable[[], tuple[nn.Module, torch.optim.Optimizer]]
SLACK_BYTES = 16
"""Scalars, such as the loss, are in other categories."""


class Mlp(nn.Module):
    """The feed-forward block of PyTorch's tests of the tracker."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        result: Tensor = self.out_proj(torch.relu(self.in_proj(x)))
        return result


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    with fake_ranks(4):
        yield


def make(*, checkpointed: bool = False, **policy: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    mesh = init_device_mesh("cpu", (4,))
    model = nn.Sequential(*(Mlp() for _ in range(LAYERS)))
    for block in model:
        if checkpointed:
            checkpoint(block)
        fully_shard(block, mesh=mesh, **policy)
    fully_shard(model, mesh=mesh, **policy)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)


def make_transformer(*, reshard: bool, wraps: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a transformer as in PyTorch's test with checkpoints, in smaller sizes."""
    mesh = init_device_mesh("cpu", (4,))
    blocks = [nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True, norm_first=True) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(WORDS, 64), *blocks, nn.LayerNorm(64), nn.Linear(64, WORDS, bias=False))
    if wraps:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, nn.TransformerEncoderLayer))
    for block in [module for module in model.modules() if isinstance(module, nn.TransformerEncoderLayer)]:
        if not wraps:
            checkpoint(block)
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)


def train(run: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, x: Tensor, between: Any = None) -> None:
    for _ in range(2):
        run(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if between is not None:
            between()


def by_tracker(make_it: Maker, x: Tensor, only_first: bool = False) -> dict[str, int]:
    """Return the tracker's bytes at the peak, by its categories."""
    model, optimizer = make_it()
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((x,))
    with tracker:
        train(model[0] if only_first else model, optimizer, x, tracker.reset_mod_stats)  # type: ignore[index]
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    for parameter in model.parameters():  # the tracker keeps the last model that it has tracked
        parameter.to_local().untyped_storage().resize_(0)  # type: ignore[attr-defined]
    return {str(getattr(kind, "name", kind)): int(size) for kind, size in peak.items()}


def at_peak(run: Recorded) -> Counter[str]:
    """Return the bytes at the peak by category, without what was alive before the program began."""
    blocks = [block for block in run.blocks if block.alloc_index >= 0]
    changes = [(block.alloc_index, block.bytes) for block in blocks]
    changes += [(block.free_index, -block.bytes) for block in blocks if block.free_index is not None]
    size = highest = peak = 0
    for index, change in sorted(changes):
        size += change
        if size > highest:
            highest, peak = size, index
    alive = [one for one in blocks if one.alloc_index <= peak and (one.free_index is None or one.free_index > peak)]
    found: Counter[str] = Counter()
    for block in alive:
        found[block.category] += block.bytes
    return found


def compare(make_it: Maker, make_input: Callable[[], Tensor], only_first: bool = False) -> None:
    """Hold our bytes at the peak to the tracker's, in total and by category."""
    theirs = by_tracker(make_it, make_input(), only_first)
    gc.collect()

    def program(_: object) -> object:
        model, optimizer = make_it()
        x = make_input()
        train(model[0] if only_first else model, optimizer, x)  # type: ignore[index]
        return model, optimizer, x

    ours = at_peak(record_own(program))
    assert sum(ours.values()) == pytest.approx(theirs["Total"], abs=SLACK_BYTES)
    differences = {
        kind: (theirs[kind], sum(ours[name] for name in names))
        for kind, names in THEIRS.items()
        if abs(theirs[kind] - sum(ours[name] for name in names)) > SLACK_BYTES
    }
    assert differences == {}


HALVES = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
OFFLOAD = CPUOffloadPolicy(pin_memory=False)


@pytest.mark.parametrize("only_first", [False, True])
@pytest.mark.parametrize(
    "policy",
    [
        {"reshard_after_forward": True},
        {"reshard_after_forward": False},
        {"mp_policy": HALVES},
        {"mp_policy": HALVES, "offload_policy": OFFLOAD},
        {"mp_policy": HALVES, "offload_policy": OFFLOAD, "reshard_after_forward": False},
        {"checkpointed": True},
    ],
    ids=["reshard", "keep", "mixed", "offload", "offload and keep", "checkpointed"],
)
def test_bytes_at_the_peak_are_those_of_torchs_tracker(policy: dict[str, Any], only_first: bool) -> None:
    compare(lambda: make(**policy), lambda: torch.randn(BATCH, WIDTH), only_first)


@pytest.mark.parametrize("wraps", [False, True], ids=["composable", "wrapper"])
@pytest.mark.parametrize("reshard", [True, False], ids=["reshard", "keep"])
def test_bytes_at_the_peak_of_a_transformer_with_checkpoints_are_those_of_torchs_tracker(
    reshard: bool, wraps: bool
) -> None:
    tokens = lambda: torch.randint(0, WORDS, (ROWS, LENGTH))  # noqa: E731
    compare(lambda: make_transformer(reshard=reshard, wraps=wraps), tokens)
