"""The code of an exported program calls no modules: its lines say which module each operator was exported from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from programs import environment, write_script
from quick import recorded
from recorded import record_own
from torch import Tensor, nn

from gpuledger.analyze.step.times import break_down_time
from gpuledger.analyze.view.view import build_view
from gpuledger.services.runs import load

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32, bias=False), nn.Linear(32, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


def test_memory_is_on_the_modules_that_were_exported() -> None:
    def program(_: object) -> object:
        blocks = nn.Sequential(Block(), Block()).eval()
        module = torch.export.export(blocks, (torch.randn(4, 8),)).module()
        with torch.no_grad():
            return module, [module(torch.ones(4, 8)) for _ in range(3)]

    run = record_own(program)
    made = {(block.module, block.bytes) for block in run.blocks if block.phase == "evaluation"}
    # An exported program has no modules for functions such as relu: they are parts of the block.
    assert made == {
        *(("0.up", 512), ("0", 512), ("0.down", 128), ("0", 128)),
        *(("1.up", 512), ("1", 512), ("1.down", 128), ("1", 128)),
    }


def test_modules_that_run_inside_a_graph_module_keep_their_own_memory() -> None:
    def program(_: object) -> object:
        module = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 4), nn.ReLU())).eval()
        with torch.no_grad():
            return module, module(torch.ones(2, 8))

    run = record_own(program)
    assert {(block.module, block.bytes) for block in run.blocks if block.phase == "evaluation"} == {
        ("0", 32),
        ("1", 32),
    }


def test_backward_is_on_the_modules_and_lines_that_were_exported() -> None:
    def program(_: object) -> None:
        blocks = nn.Sequential(Block(), Block())
        module = torch.export.export(blocks, (torch.randn(4, 8),)).module()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(torch.ones(4, 8)).square().sum().backward()
            optimizer.step()

    run = record_own(program)
    blocks = [block for block in run.blocks if block.phase in ("forward", "backward") and block.step == 2]
    saved = {(block.module, block.bytes) for block in blocks if block.category == "activation"}
    assert {("0", 512), ("1", 512)} <= saved
    gradients = {(block.module, block.bytes) for block in blocks if block.category == "gradient"}
    assert gradients == {(f"{number}.{name}", 1024) for number in "01" for name in ("up", "down")}
    between = {(block.module, block.bytes) for block in blocks if block.phase == "backward"} - gradients
    # the gradient of each layer's result, which the layer's node or that of the function after it makes
    assert {("0", 512), ("1", 512), ("0.down", 512), ("1.down", 512)} <= between
    assert not {module for module, _ in between} - {"", "0", "1", *(module for module, _ in gradients)}


EXPORTED = """
import torch
from torch import nn

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        y = self.up(x)  # up
        return self.down(y.sigmoid() * y)  # down

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Gated(), Gated()

    def forward(self, x):
        return self.second(self.first(x)).softmax(-1)  # both

module = torch.export.export(Two().eval(), (torch.randn(32, 64),)).module()
with torch.no_grad():
    for _ in range(10):
        module(torch.randn(32, 64))
"""


def test_times_and_lines_are_those_that_were_exported(tmp_path: Path) -> None:
    write_script(tmp_path, EXPORTED)
    assert recorded(["train.py"], tmp_path, env=environment(GPULEDGER_PASSES="")).status == 0
    run = load(tmp_path / "train.ledger")
    found = break_down_time(run.rank())
    assert found is not None
    assert {"first.up", "first.down", "second.up", "second.down"} <= {
        one.module for one in found.accounts if one.time_ns
    }
    texts = EXPORTED.splitlines()
    labels = [one.label for one in build_view(run).highest.line_amounts if one.time_ns and "train.py:" in one.label]
    timed = {texts[int(label.rpartition("train.py:")[2].split(" ")[0]) - 1].rpartition("# ")[2] for label in labels}
    assert {"up", "down", "both"} <= timed
