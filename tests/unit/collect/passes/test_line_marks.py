"""Ranges with source lines around operators."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpuledger.collect.adapter import dispatch_modes
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.passes.line_marks import LineMarks

pytestmark = pytest.mark.torch


@pytest.fixture
def marks() -> LineMarks:
    return LineMarks(StackTable(), Guard(lambda _: None))


def test_backward_runs_without_a_dispatch_mode(marks: LineMarks) -> None:
    """With one, autograd would add up gradients in new tensors."""
    weight = torch.randn(3, requires_grad=True)
    modes: list[object] = []
    weight.register_hook(lambda _: modes.append(dispatch_modes.innermost_dispatch_mode()))
    marks.install()
    try:
        assert dispatch_modes.has_dispatch_mode()
        (weight * weight).sum().backward()
        torch.autograd.grad((weight * weight).sum(), weight)
        assert dispatch_modes.has_dispatch_mode()
    finally:
        assert marks.remove()
    assert modes == [None, None]
    assert not dispatch_modes.has_dispatch_mode()


def test_a_mode_that_is_removed_during_backward_does_not_come_back(marks: LineMarks) -> None:
    weight = torch.randn(3, requires_grad=True)
    removed: list[bool] = []
    weight.register_hook(lambda _: removed.append(marks.remove()))
    marks.install()
    weight.sum().backward()
    assert removed == [True]
    assert not dispatch_modes.has_dispatch_mode()


def test_python_code_in_backward_has_ranges_and_autograd_itself_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(3, requires_grad=True)
    gradients: list[Tensor | None] = []

    def hook(changed: Tensor) -> None:
        gradients.append(changed.grad)
        torch.mul(changed.detach(), 2)

    weight.register_post_accumulate_grad_hook(hook)
    losses = [(weight * weight).sum() for _ in range(2)]
    _, lines = with_mode(lambda: [loss.backward() for loss in losses], monkeypatch)
    assert lines.count("hook") == 2 * len(["detach", "mul"])
    assert set(lines) <= {"hook", "<lambda>", "<listcomp>"}
    assert gradients[0] is gradients[1]
    assert dispatch_modes.innermost_function_mode() is None


def test_a_hook_that_ends_the_marks_leaves_no_mode(marks: LineMarks) -> None:
    weight = torch.randn(3, requires_grad=True)
    removed: list[bool] = []
    weight.register_post_accumulate_grad_hook(lambda _: removed.append(marks.remove()))
    marks.install()
    (weight * weight).sum().backward()
    assert not dispatch_modes.has_dispatch_mode()
    assert dispatch_modes.innermost_function_mode() is None


def test_a_mode_of_the_program_stays_innermost(marks: LineMarks) -> None:
    class Own(TorchDispatchMode):
        """Calls every operator."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    weight = torch.randn(3, requires_grad=True)
    marks.install()
    with Own() as own:
        weight.sum().backward()
        assert dispatch_modes.innermost_dispatch_mode() is own
    assert marks.remove()
    assert not dispatch_modes.has_dispatch_mode()


def with_mode(run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> tuple[list[bool], list[str]]:
    """Return whether a mode was on in each call of ``Linear``, and the lines that ranges were opened for."""
    modes: list[bool] = []
    lines: list[str] = []
    marks = LineMarks(StackTable(), Guard(lambda error: pytest.fail(str(error))))
    real = nn.functional.linear

    def linear(*arguments: Any) -> torch.Tensor:
        modes.append(dispatch_modes.has_dispatch_mode())
        return real(*arguments)

    def opened(frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename != __file__:
            frame = frame.f_back
        assert frame is not None
        lines.append(frame.f_code.co_name)

    monkeypatch.setattr(nn.functional, "linear", linear)
    monkeypatch.setattr(marks, "_opened", opened)
    marks.install()
    try:
        run()
        assert dispatch_modes.has_dispatch_mode()
    finally:
        assert marks.remove()
    assert not dispatch_modes.has_dispatch_mode()
    return modes, lines


class Block(nn.Module):
    """A module of a program with one of PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.inner(values) * 2


def test_pytorchs_own_modules_run_without_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """With it, a bias is added in a new tensor. The program's own code beside them has its lines."""
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    values = torch.randn(2, 3, 5, 4)
    block = Block()
    modes, lines = with_mode(lambda: block(layers(values)), monkeypatch)
    assert modes == [False] * 3
    assert lines == ["<lambda>", "forward", "forward"]


def test_a_module_that_runs_the_programs_code_keeps_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked, changed = nn.Linear(4, 4), nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    monkeypatch.setattr(changed, "forward", lambda values: nn.functional.linear(values, changed.weight))
    values = torch.randn(2, 4)
    modes, _ = with_mode(lambda: changed(nn.Sequential(hooked)(values)), monkeypatch)
    assert modes == [True, True]


def test_an_error_in_a_module_brings_the_mode_back(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, values = nn.Linear(4, 4), torch.randn(2, 3)

    def fails() -> None:
        with pytest.raises(RuntimeError, match="shapes"):
            layer(values)

    modes, lines = with_mode(fails, monkeypatch)
    assert modes == [False]
    assert lines == ["fails"]


def test_marks_that_are_removed_inside_a_module_do_not_come_back(
    marks: LineMarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(marks, "_opened", lambda _frame: SimpleNamespace(__exit__=lambda *_: closed.append(True)))
    real = nn.functional.linear

    def linear(*arguments: Any) -> torch.Tensor:
        assert marks.remove()
        assert closed == [True]
        return real(*arguments)

    layer, values = nn.Linear(4, 4), torch.randn(2, 4)
    marks.install()
    monkeypatch.setattr(nn.functional, "linear", linear)
    layer(values)
    assert not dispatch_modes.has_dispatch_mode()
    assert closed == [True]
