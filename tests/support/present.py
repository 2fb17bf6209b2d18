"""What may be absent in general and is there in a test."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """Return ``value``, which the test fails without."""
    assert value is not None
    return value
