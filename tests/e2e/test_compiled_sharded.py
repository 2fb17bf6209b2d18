"""A compiled block of sharded training that keeps a whole copy of its weight is found by category, module and line."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from fake_ranks import fake_ranks
from torch import Tensor, distributed, nn

if not distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gpuledger import record
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import resolve_instant
from gpuledger.model.run import Rank

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # Dynamo reads attributes that warn
    pytest.mark.usefixtures("compiler_caches"),
]

WIDTH, RANKS, BLOCKS = 64, 4, 3
WEIGHT_BYTES = 4 * WIDTH * 4 * WIDTH


@torch.library.custom_op("gpuledger_sharded::magnitude", mutates_args=())
def magnitude(weight: Tensor) -> Tensor:
    """Return absolute values. The compiler keeps the result for backward: it cannot compute it again."""
    return weight.abs()


@magnitude.register_fake
def _(weight: Tensor) -> Tensor:
    return torch.empty_like(weight)


def _keep_sign(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


magnitude.register_autograd(lambda ctx, gradient: gradient * ctx.saved_tensors[0].sign(), setup_context=_keep_sign)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        whole = magnitude(self.up.weight)  # planted
        return x + self.down(torch.relu(x @ whole.T))  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks = nn.ModuleList(FeedForward() for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x


def trained(directory: Path, *, compiled: bool) -> Rank:
    """Return a recording of the second and third step."""
    torch._dynamo.reset()
    with fake_ranks(RANKS), record(out=directory / "run", devices="cpu", steps=(2, 3), stacks=True) as recording:
        net, mesh = Net(), init_device_mesh("cpu", (RANKS,))
        for block in net.blocks:
            if compiled:
                block.compile()
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _step in range(4):
            net(torch.randn(8, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return recording.run().rank()


def planted_line() -> str:
    """Return FILE:LINE of the planted copy."""
    lines, first = inspect.getsourcelines(FeedForward)
    number = next(first + at for at, line in enumerate(lines) if "# planted" in line)
    return f"{Path(__file__).name}:{number}"


def kept_for_backward(rank: Rank) -> set[tuple[str, str, str]]:
    """Return category, module and line of what is as large as a whole weight when the third step's backward begins."""
    blocks = rank.table("blocks").to_pylist()
    first = min(one["alloc_index"] for one in blocks if (one["step"], one["phase"]) == (3, "backward"))
    begins = replace(resolve_instant(rank, "end", step=3), index=first - 1)
    found = break_down(rank, begins, by=("category", "module", "tensor", "line")).accounts
    return {(one.category, one.module, str(one.line).partition(" ")[0]) for one in found if one.bytes == WEIGHT_BYTES}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_whole_copy_of_a_sharded_weight_is_on_its_module_and_line(compiled: bool, tmp_path: Path) -> None:
    rank = trained(tmp_path, compiled=compiled)
    assert kept_for_backward(rank) == {("activation", f"blocks.{number}", planted_line()) for number in range(BLOCKS)}
    assert not rank.manifest.compiled_unread
