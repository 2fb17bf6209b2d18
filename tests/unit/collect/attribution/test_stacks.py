"""Stacks: each kept once, ours left out, innermost first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
import torch

from gpuledger.collect.attribution import stacks
from gpuledger.collect.attribution.stacks import MAX_FRAMES, StackTable
from gpuledger.model.journal.journal import Part


def here() -> FrameType:
    return sys._getframe(1)


def deep(levels: int) -> FrameType:
    return deep(levels - 1) if levels else here()


def drained(table: StackTable) -> list[list[tuple[str, int, str]]]:
    part = Part()
    table.drain(part)
    return part.stacks


def test_a_stack_has_one_number_and_another_line_another() -> None:
    table = StackTable()
    numbers = [table.intern_frame(deep(2)) for _ in range(3)]
    other = table.intern_frame(deep(2))
    assert numbers == [0, 0, 0]
    assert other == 1
    first, second = drained(table)
    assert [frame[2] for frame in first[:3]] == ["deep"] * 3
    assert first[0][0] == second[0][0] == __file__
    assert drained(table) == []
    assert table.intern_frame(deep(3)) == 2


def test_numbers_go_on_after_a_drain() -> None:
    table = StackTable()
    assert table.intern((("a.py", 1, "f"),)) == 0
    assert drained(table) == [[("a.py", 1, "f")]]
    assert table.intern((("a.py", 2, "f"),)) == 1
    assert table.intern((("a.py", 1, "f"),)) == 0
    assert drained(table) == [[("a.py", 2, "f")]]


def test_our_own_frames_are_left_out_and_a_stack_of_ours_alone_is_none() -> None:
    table = StackTable()
    ours = (stacks.__file__, 1, "intern")
    assert table.intern((ours, ("a.py", 1, "f"), ours)) == table.intern((("a.py", 1, "f"),)) == 0
    assert table.intern((ours,)) == -1
    assert table.intern(()) == table.intern_frame(None) == -1
    assert len(drained(table)) == 1


def test_deep_stacks_are_cut() -> None:
    table = StackTable()
    table.intern_frame(deep(10 * MAX_FRAMES))
    assert [len(stack) for stack in drained(table)] == [MAX_FRAMES]


def test_code_can_be_released_and_numbers_stay() -> None:
    table = StackTable()
    number = table.intern_frame(deep(2))
    table.forget_code()
    assert [table.intern_frame(deep(2)) for _ in range(2)] == [number + 1] * 2  # another line of this test
    assert len(drained(table)) == 2


def test_the_code_kept_for_comparison_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MAX_SEEN", 10)
    table = StackTable()
    for line in range(35):
        scope: dict[str, FrameType] = {"here": here}  # type: ignore[dict-item]
        exec(compile("\n" * line + "found = here()", "generated.py", "exec"), scope)
        assert table.intern_frame(scope["found"]) == line
    assert len(table._seen) <= 10


def test_a_line_of_generated_code_is_shown_as_the_lines_it_was_made_from() -> None:
    table = StackTable()
    table.add_sources({("c1.py", 7): (("net.py", 3, "forward"), ("net.py", 9, "run"))})
    table.intern((("c1.py", 7, "call"), ("train.py", 2, "<module>")))
    table.intern((("c1.py", 8, "call"), ("train.py", 2, "<module>")))
    assert drained(table) == [
        [("net.py", 3, "forward"), ("net.py", 9, "run"), ("train.py", 2, "<module>")],
        [("c1.py", 8, "call"), ("train.py", 2, "<module>")],
    ]


def test_a_line_of_generated_code_that_nothing_is_known_of_belongs_to_the_line_that_calls_the_code() -> None:
    table = StackTable()
    table.add_sources({("c1.py", 7): (("net.py", 3, "forward"),)})
    table.leave_out("c1.py")
    table.intern((("c1.py", 8, "call"), ("train.py", 2, "<module>")))
    table.intern((("c1.py", 7, "call"), ("train.py", 2, "<module>")))
    assert drained(table) == [[("train.py", 2, "<module>")], [("net.py", 3, "forward"), ("train.py", 2, "<module>")]]


@pytest.mark.parametrize(
    "name", ["torch_dynamo_resume_in_fit_at_31", "torch_dynamo_resume_in_torch_dynamo_resume_in_fit_at_31_at_40", "fit"]
)
def test_the_code_after_a_graph_break_has_the_name_of_its_function(name: str) -> None:
    table = StackTable()
    table.intern((("train.py", 44, name),))
    assert drained(table) == [[("train.py", 44, "fit")]]


@pytest.mark.parametrize(
    "transform",
    [
        lambda function: torch.func.vmap(function)(torch.ones(2, 3)),
        lambda function: torch.func.grad(lambda x: function(x).sum())(torch.ones(3)),
        lambda function: torch.func.jvp(function, (torch.ones(3),), (torch.ones(3),)),
        lambda function: torch.func.jacrev(function)(torch.ones(3)),
        lambda function: torch.func.hessian(lambda x: function(x).sum())(torch.ones(3)),
    ],
    ids=["vmap", "grad", "jvp", "jacrev", "hessian"],
)
def test_a_stack_in_a_transform_is_noticed(
    transform: Callable[[Callable[[torch.Tensor], torch.Tensor]], object],
) -> None:
    table = StackTable()

    def squared(x: torch.Tensor) -> torch.Tensor:
        table.intern_frame(here())
        return x**2

    squared(torch.ones(3))
    assert not table.has_transforms
    transform(squared)
    assert table.has_transforms


def test_a_transform_that_is_compiled_is_none() -> None:
    traced = tuple((f"{stacks._TORCH_FILES}{name}.py", 1, "f") for name in ("_functorch/vmap", "_dynamo/convert_frame"))
    table = StackTable()
    table.intern(traced)
    assert not table.has_transforms
    table.intern(traced[:1])
    assert table.has_transforms
