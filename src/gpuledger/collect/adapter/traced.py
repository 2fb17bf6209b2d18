"""Let ``torch.compile`` trace other code than what runs, and ask whether it traces.

``torch.compiler.is_dynamo_compiling`` is no question without an effect: Dynamo skips a frame that computes nothing, but
compiles one in which this was asked, and compiles it again where its guards fail. For a function that stands for
another one, as a compiled function does for its original, Dynamo traces the other one and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

_F = TypeVar("_F", bound=Callable[..., Any])

TRACED = "_gpuledger_traced"
"""Name of a function in ``torch.compiler`` that returns whether Dynamo traces its call."""


def traced_as(other: Callable[..., Any]) -> Callable[[_F], _F]:
    """Decorate a function so that Dynamo traces ``other`` in its place."""

    def decorate(function: _F) -> _F:
        vars(function)["_torchdynamo_inline"] = other
        return function

    return decorate


def _true() -> bool:
    return True


@traced_as(_true)
def _is_traced() -> bool:
    return False


setattr(torch.compiler, TRACED, _is_traced)
