"""What containers of the program hold is known by their last elements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpuledger.collect.flight.holders import _content_of

pytestmark = pytest.mark.torch

BLOCK = torch.ones(2)


def used(*_: Any, **__: Any) -> None:
    pass


def in_closure() -> Callable[[], object]:
    block = BLOCK
    return lambda: block


@pytest.mark.parametrize(
    "one",
    [
        BLOCK,
        in_closure(),
        lambda block=BLOCK: block,
        lambda *, block=BLOCK: block,
        functools.partial(used, BLOCK),
        functools.partial(used, block=BLOCK),
        [1, (BLOCK,)],
    ],
    ids=["tensor", "closure", "default", "keyword default", "partial", "partial by keyword", "nested"],
)
def test_a_container_of_what_keeps_tensors(one: object) -> None:
    assert _content_of([one]) == "tensor"
    assert _content_of({1: one}) == "tensor"


@pytest.mark.parametrize("one", [1, used, lambda number=1: number, functools.partial(used, 1)])
def test_a_container_of_other_things(one: object) -> None:
    assert _content_of([one]) == ""
