"""What resharding after forward would save is what the program with resharding takes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_ranks import fake_ranks
from torch import Tensor, distributed, nn

if not distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import gpuledger
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.overview.findings import find_findings
from gpuledger.model.run import Rank

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")]

TITLE = "Weights stay gathered from forward to backward"
WIDTH, LAYERS = 128, 6


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    with fake_ranks(4):
        yield
    gc.collect()


class Layer(nn.Module):
    """A layer with several weights, which are gathered together."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        return x + self.down(torch.relu(self.up(self.norm(x))))  # type: ignore[no-any-return]


def make_model() -> nn.Module:
    """Return a model with weights of its own around the layers, which are gathered for the whole step."""
    return nn.Sequential(nn.Linear(16, WIDTH), *(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, 512))


def fsdp2(*, keep: bool | None) -> nn.Module:
    model, mesh = make_model(), init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    options = {} if keep is None else {"reshard_after_forward": not keep}
    for layer in [one for one in model if isinstance(one, Layer)]:  # type: ignore[attr-defined]
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def fsdp1(*, keep: bool | None) -> nn.Module:
    strategy = ShardingStrategy.SHARD_GRAD_OP if keep else ShardingStrategy.FULL_SHARD
    policy, device = ModuleWrapPolicy({Layer}), torch.device("cpu")
    return FullyShardedDataParallel(make_model(), auto_wrap_policy=policy, sharding_strategy=strategy, device_id=device)


def hybrid(*, keep: bool | None) -> nn.Module:
    strategy = ShardingStrategy._HYBRID_SHARD_ZERO2 if keep else ShardingStrategy.HYBRID_SHARD
    return FullyShardedDataParallel(
        make_model(),
        auto_wrap_policy=ModuleWrapPolicy({Layer}),
        sharding_strategy=strategy,
        device_id=torch.device("cpu"),
        device_mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")),
    )


MAKES = {"fsdp1": fsdp1, "fsdp2": fsdp2, "hybrid": hybrid}


def recorded(path: Path, kind: str, *, keep: bool | None) -> Rank:
    gc.collect()  # sharded models are in cycles, and what is left of another one is alive, too
    with gpuledger.record(out=path, devices="cpu") as recording:
        model = MAKES[kind](keep=keep)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return recording.run().rank()


def peak_of_training(rank: Rank) -> int:
    """Return the peak of the second step, without what was there before the recording."""
    peak = find_peak(rank, -1, 2)
    rows = rank.table("blocks").to_pylist()
    ends = [(row, row["free_requested_index"]) for row in rows if row["alloc_index"] < 0]
    earlier = [row["allocated_bytes"] for row, end in ends if end is None or end > peak.index]
    return break_down(rank, peak).allocated_bytes - sum(earlier)


@pytest.mark.parametrize("kind", MAKES)
def test_the_peak_with_resharding_is_that_of_the_program_with_it(kind: str, tmp_path: Path) -> None:
    kept, resharded = (recorded(tmp_path / str(keep), kind, keep=keep) for keep in (True, False))
    (found,) = [one for one in find_findings(kept) if one.title == TITLE]
    peaks = [peak_of_training(rank) for rank in (kept, resharded)]
    assert peaks[0] - found.saving_bytes == pytest.approx(peaks[1], rel=0.1)
    assert peaks[0] > 1.15 * peaks[1]
    assert {"fsdp1": ".FULL_SHARD", "fsdp2": "reshard_after_forward=True", "hybrid": ".HYBRID_SHARD"}[
        kind
    ] in found.advice


@pytest.mark.parametrize(("kind", "keep"), [("fsdp1", False), ("fsdp2", False), ("fsdp2", None), ("hybrid", False)])
def test_nothing_is_said_where_weights_are_resharded(kind: str, keep: bool | None, tmp_path: Path) -> None:
    """By default, ``fully_shard`` keeps the weights of the outermost module alone."""
    found = find_findings(recorded(tmp_path / "run", kind, keep=keep))
    assert TITLE not in [one.title for one in found]
