"""Ranges with source lines around operators."""

from __future__ import annotations

import pytest
import torch
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
