"""Bytes that an element of a container keeps, without those that all elements share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpuledger.collect.flight.element_sizes import PLACE_BYTES, ElementSize, data_of, size_of_element
from gpuledger.collect.flight.time_limit import TimeLimit

pytestmark = pytest.mark.torch

BYTES = 1 << 16
SHARED = torch.ones(1 << 20)


def block() -> torch.Tensor:
    return torch.ones(BYTES // 4)


@dataclass(slots=True)
class Slotted:
    """An object without a ``__dict__``."""

    block: torch.Tensor
    shared: torch.Tensor


class Plain:
    """An object with attributes."""

    def __init__(self) -> None:
        self.block, self.shared = block(), SHARED


def generator() -> Iterator[Any]:
    def batches() -> Iterator[Any]:
        batch = block()
        yield 0
        yield batch

    made = batches()
    next(made)
    return made


def error() -> Exception:
    def failing() -> None:
        local = block()
        raise ValueError(local.numel())

    try:
        failing()
    except ValueError as caught:
        return caught
    raise AssertionError


def module() -> nn.Module:
    return nn.Linear(BYTES // 4, 1, bias=False)


@pytest.mark.parametrize(
    "make",
    [
        block,
        module,
        generator,
        error,
        Plain,
        lambda: Slotted(block(), SHARED),
        lambda: (1, "step", {"output": block(), "shared": SHARED}),
        lambda: block().numpy(),
        lambda: np.ones(BYTES, np.uint8),
        lambda: np.ones((BYTES // 4, 1), np.float32)[:1],
        lambda: partial(print, block()),
    ],
    ids=[
        *("tensor", "module", "generator", "error", "object", "slots", "nested", "tensor's array", "array"),
        *("view of an array", "partial"),
    ],
)
def test_the_bytes_of_an_element_are_its_own(make: Callable[[], object]) -> None:
    assert size_of_element([make() for _ in range(6)], TimeLimit(10**10)).bytes == pytest.approx(BYTES, rel=0.02)


@pytest.mark.parametrize(
    ("make", "used_bytes"),
    [
        (block, BYTES),
        (lambda: block()[0], 4),
        (lambda: [(whole := block())[:8], whole[8:24]], 96),
        (lambda: block().expand(5, BYTES // 4), BYTES),
        (lambda: block().numpy(), BYTES),
    ],
    ids=["whole", "one value", "parts", "repeated", "array"],
)
def test_bytes_of_a_storage_that_are_not_values_of_its_tensors(make: Callable[[], object], used_bytes: int) -> None:
    size = size_of_element([make() for _ in range(6)], TimeLimit(10**10))
    assert (size.bytes, size.unused_bytes) == (BYTES, BYTES - used_bytes)


def test_numbers_are_known_to_be_small_and_other_objects_are_not() -> None:
    assert size_of_element([0.5, 1.5, (1, 2)], TimeLimit(10**10)) == ElementSize(PLACE_BYTES)
    assert size_of_element([], TimeLimit(10**10)) == ElementSize()
    owner = Plain()
    assert size_of_element([weakref.finalize(owner, print, block())], TimeLimit(10**10)).bytes == 0


def test_the_beginning_of_values_shows_what_was_appended_to() -> None:
    values = torch.randn(64)
    longer, other = torch.cat([values, values]), torch.randn(128)
    first, joined, new = (data_of(one) for one in (values, longer, other))
    assert first is not None
    assert joined is not None
    assert new is not None
    assert first.prefix
    assert first.prefix == joined.prefix
    assert first.prefix != new.prefix


@pytest.mark.parametrize("same", [torch.zeros(64), torch.ones(64), np.zeros(64), b"0" * 64, torch.ones(2)])
def test_a_beginning_of_one_value_shows_nothing(same: object) -> None:
    found = data_of(same)
    assert found is not None
    assert found.prefix == b""
