"""Whether the program is inside an operator that it has written itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.amp import custom_fwd

from gpuledger.collect.adapter.torch_entrances import is_in_function

pytestmark = pytest.mark.torch

seen: list[bool] = []


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
        seen.append(is_in_function())
        return data * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class WithContext(torch.autograd.Function):
    @staticmethod
    def forward(data: torch.Tensor) -> torch.Tensor:
        return data * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append(is_in_function())


class Decorated(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
        seen.append(is_in_function())
        return data * 2


class Derived(Plain):
    """Has the functions of another one."""


@pytest.fixture(params=["in Python", "in C"])
def apply(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """``apply`` as it is written in the installed PyTorch, and as in PyTorch 2.14."""
    if request.param == "in C":
        monkeypatch.setattr(torch.autograd.Function, "apply", vars(torch._C._FunctionBase)["apply"])


@pytest.mark.usefixtures("apply")
@pytest.mark.parametrize("kind", [Plain, WithContext, Decorated, Derived])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_a_function_computes_is_inside_it(kind: type[torch.autograd.Function], mode: Callable[[], Any]) -> None:
    seen.clear()
    with mode():
        kind.apply(torch.ones(2, requires_grad=True))
    assert seen == [True]
    assert not is_in_function()
