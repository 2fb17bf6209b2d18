"""Every recorded allocation has the Python stack that it was made with, in each recorded step."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from device_thread import backward_in_another_thread
from torch import nn

from gpuledger import record
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.memory import dispatch, node_lines
from gpuledger.collect.memory.node_lines import NodeLines
from gpuledger.model.journal.journal import Part

pytestmark = pytest.mark.torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return self.second(x)


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Net()
    return model, torch.optim.Adam(model.parameters())


def train_one_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss = model(torch.randn(16, 64)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def record_training(out: Path, **options: Any) -> list[dict[str, Any]]:
    """Return the blocks allocated while recording, each with ``lines``: functions of this file, innermost first."""
    with record(out=out, devices="cpu", **options) as recording:
        model, optimizer = make_model()
        for _ in range(4):
            train_one_step(model, optimizer)
    rank = recording.run().rank(0)
    functions: dict[int | None, list[str]] = {}
    for row in rank.table("stacks").to_pylist():
        functions.setdefault(row["stack_id"], []).extend([row["function"]] * (row["file"] == __file__))
    rows = [row for row in rank.table("blocks").to_pylist() if row["alloc_index"] >= 0]
    return [{**row, "functions": functions.get(row["stack_id"], [])} for row in rows]


def test_every_block_of_every_step_has_a_stack(tmp_path: Path) -> None:
    blocks = record_training(tmp_path / "run", steps=(1, 3))
    assert {row["step"] for row in blocks} >= {1, 2, 3}
    assert [row for row in blocks if row["stack_id"] is None] == []


def test_a_block_without_steps_has_stacks_too(tmp_path: Path) -> None:
    assert all(row["functions"] for row in record_training(tmp_path / "run"))


def test_without_stacks_there_are_none(tmp_path: Path) -> None:
    blocks = record_training(tmp_path / "run", stacks=False)
    assert blocks
    assert all(row["stack_id"] is None for row in blocks)


def test_categories_have_the_lines_that_a_person_expects(tmp_path: Path) -> None:
    blocks = record_training(tmp_path / "run", steps=(1, 3))
    innermost: dict[str, set[str]] = {}
    for row in blocks:
        innermost.setdefault(row["category"], set()).add(row["functions"][0])
    assert innermost["weight"] == {"__init__"}
    assert innermost["optimizer_state"] == {"train_one_step"}
    assert "forward" in innermost["activation"]
    # the call of backward() is the same for all gradients; the line of the forward call tells them apart
    assert innermost["gradient"] == {"forward"}


def test_a_program_outside_modules_has_the_line_of_backward(tmp_path: Path) -> None:
    with record(out=tmp_path / "run", devices="cpu") as recording:
        weight = torch.randn(64, 64, requires_grad=True)
        (weight @ weight).square().sum().backward()
    stacks = recording.run().rank(0).table("stacks").to_pylist()
    blocks = [row for row in recording.run().rank(0).table("blocks").to_pylist() if row["phase"] == "backward"]
    for block in blocks:
        mine = [row for row in stacks if row["stack_id"] == block["stack_id"] and row["file"] == __file__]
        assert mine[0]["function"] == "test_a_program_outside_modules_has_the_line_of_backward"


def hidden(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ weight)


def output(x: torch.Tensor) -> torch.Tensor:
    return x.square().sum()


def backward_lines(recording: Any) -> list[tuple[str, int]]:
    """Return the function and the bytes of each block of backward, in the order of allocation."""
    rank = recording.run().rank(0)
    innermost: dict[int, str] = {}
    for row in rank.table("stacks").to_pylist():
        if row["file"] == __file__:
            innermost.setdefault(row["stack_id"], row["function"])
    blocks = [row for row in rank.table("blocks").to_pylist() if row["phase"] == "backward"]
    ordered = sorted(blocks, key=lambda row: row["alloc_index"])
    return [(innermost[row["stack_id"]], row["requested_bytes"]) for row in ordered]


def test_outside_modules_backward_is_on_the_lines_of_forward(tmp_path: Path) -> None:
    here = "test_outside_modules_backward_is_on_the_lines_of_forward"
    weight, x = torch.randn(64, 64, requires_grad=True), torch.randn(32, 64)
    with record(out=tmp_path / "run", devices="cpu") as recording:
        for _ in range(2):
            loss = output(hidden(x, weight))
            loss.backward()
    found = backward_lines(recording)
    assert (here, 4) in found  # where backward begins, its first gradient is made
    assert {name for name, size in found if size == 4 * 32 * 64} == {"output", "hidden"}
    assert {name for name, size in found if size == 4 * 64 * 64} == {"hidden"}
    assert {name for name, size in found if name == here} == {here}


def test_nodes_of_several_threads_are_not_mixed_up(tmp_path: Path) -> None:
    here = "test_nodes_of_several_threads_are_not_mixed_up"
    weight, x = torch.randn(64, 64, requires_grad=True), torch.randn(32, 64)
    layer = nn.Linear(64, 64)
    with record(out=tmp_path / "run", devices="cpu") as recording:
        loss = output(hidden(x, weight))
        thread = threading.Thread(target=lambda: torch.tanh(torch.tanh(layer(x))).sum())
        thread.start()  # a thread is recorded that calls a module
        thread.join()
        loss.backward()
    assert {name for name, size in backward_lines(recording) if size >= 4 * 32 * 64} == {here}


def test_nodes_that_were_not_recorded_have_the_line_of_backward(tmp_path: Path) -> None:
    here = "test_nodes_that_were_not_recorded_have_the_line_of_backward"
    weight, x = torch.randn(64, 64, requires_grad=True), torch.randn(32, 64)
    before = hidden(x, weight)
    with record(out=tmp_path / "run", devices="cpu") as recording:
        output(before).backward()
    found = backward_lines(recording)
    assert [name for name, size in found if size == 4 * 64 * 64] == [here]
    assert {name for name, size in found if size == 4 * 32 * 64} == {"output", here}


def names_of_nodes(lines: NodeLines, stacks: StackTable, result: torch.Tensor) -> list[str]:
    """Return the function of this file that each node below a result has been created in, the newest first."""
    part = Part()
    stacks.drain(part)
    found, node = [], result.grad_fn
    while node is not None:
        stack = part.stacks[lines._of_node(node)] if lines._of_node(node) >= 0 else []
        found.append(next((frame[2] for frame in stack if frame[0] == __file__), ""))
        node = next((one for one, _ in node.next_functions if one is not None and "Accumulate" not in one.name()), None)
    return found


def test_the_lines_of_the_newest_nodes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_lines, "MOST_NODES", 4)
    stacks = StackTable()
    lines = NodeLines(stacks)
    x = torch.ones(2, requires_grad=True)
    for _ in range(9):
        x = x * 2
        lines.saw(sys._getframe())
    here = "test_the_lines_of_the_newest_nodes_are_kept"
    assert names_of_nodes(lines, stacks, x) == [here] * 3 + [""] * 6


def test_nodes_created_while_operators_are_not_seen_have_no_line() -> None:
    stacks = StackTable()
    lines = NodeLines(stacks)
    x = torch.ones(2, requires_grad=True) * 2
    lines.saw(sys._getframe())
    x = x * 3  # as in a pause of the recording
    lines.begin()
    assert not torch.ones(2).requires_grad
    lines.saw(sys._getframe())  # an operator that creates no node
    x = x * 4
    lines.saw(sys._getframe())
    here = "test_nodes_created_while_operators_are_not_seen_have_no_line"
    assert names_of_nodes(lines, stacks, x) == [here, "", here]


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Know no operators that have created nodes: on a GPU, the allocator's history has none."""
    monkeypatch.setattr(NodeLines, "_of_node", lambda *_: -1)


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("by_grad", [False, True])
def test_in_a_thread_of_autograd_it_has_the_line_that_started_backward(by_grad: bool, tmp_path: Path) -> None:
    with record(out=tmp_path / "run", devices="cpu") as recording, backward_in_another_thread():
        weight = torch.randn(64, 64, requires_grad=True)
        result = (weight @ weight).square()
        start = torch.ones(64, 64)
        for _ in range(2):
            if by_grad:
                torch.autograd.grad(result, weight, start, retain_graph=True)
            else:
                result.backward(start, retain_graph=True)
    rank = recording.run().rank(0)
    frames: dict[int, list[Any]] = {}
    for row in rank.table("stacks").to_pylist():
        frames.setdefault(row["stack_id"], []).append(row)
    blocks = [row for row in rank.table("blocks").to_pylist() if row["phase"] == "backward"]
    assert len(blocks) >= 6
    for block in blocks:
        stack = frames[block["stack_id"]]
        assert stack[0]["function"] == ("grad" if by_grad else "backward")
        assert any(row["file"] == __file__ for row in stack)


def test_a_module_s_forward_call_is_known_in_a_thread_of_autograd(tmp_path: Path) -> None:
    with backward_in_another_thread():
        blocks = record_training(tmp_path / "run", steps=(1, 3))
    assert {row["functions"][0] for row in blocks if row["category"] == "gradient"} == {"forward"}
    assert [row for row in blocks if not row["functions"]] == []


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_module_s_own_code_has_its_forward_call_in_a_thread_of_autograd(tmp_path: Path) -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.inner(torch.tanh(x) * 2)) * 3

    class Outermost(Around):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Around()  # type: ignore[assignment]

    with record(out=tmp_path / "run", devices="cpu") as recording, backward_in_another_thread():
        Outermost()(torch.randn(4, 8, requires_grad=True)).sum().backward()
    rank = recording.run().rank(0)
    innermost: dict[int, str] = {}
    for row in rank.table("stacks").to_pylist():
        if row["file"] == __file__:
            innermost.setdefault(row["stack_id"], row["function"])
    paths = {row["module_id"]: row["path"] for row in rank.table("modules").to_pylist()}
    blocks = [row for row in rank.table("blocks").to_pylist() if row["phase"] == "backward"]
    found = {(paths.get(row["module_id"], ""), innermost[row["stack_id"]]) for row in blocks}
    here = "test_a_module_s_own_code_has_its_forward_call_in_a_thread_of_autograd"
    of_the_input = ("", "forward")  # its gradient, as the input itself, belongs to no module
    assert found == {("", here), of_the_input, ("Outermost", here), ("inner", "forward"), ("inner.inner", "forward")}


def test_a_custom_backward_has_its_own_lines(tmp_path: Path) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * 2

    with record(out=tmp_path / "run", devices="cpu") as recording:
        model = nn.Linear(8, 8)
        Double.apply(model(torch.randn(4, 8))).sum().backward()
    innermost = {
        row["function"]
        for row in recording.run().rank(0).table("stacks").to_pylist()
        if row["file"] == __file__ and row["frame_idx"] == 0
    }
    assert {"forward", "backward"} <= innermost


def test_a_program_without_steps_is_written_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MOST_EVENTS", 50)
    kept = []
    with record(out=tmp_path / "run", devices="cpu") as recording:
        for number in range(100):
            kept.append(torch.full((8,), float(number)))
            kept[-1].add(1)
    rank = recording.run().rank(0)
    assert sum(pause.reason == "drain" for pause in rank.manifest.pauses) >= 5
    assert all(check.ok for check in rank.manifest.checks)
    assert len(rank.table("blocks").to_pylist()) >= 200
