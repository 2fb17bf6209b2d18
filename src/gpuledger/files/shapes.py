"""What values read from JSON must look like: small descriptions that are put together, and checked by one function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

LARGEST = 1 << 62
"""Integers of a manifest stay below this in size, so that the sum of two fits a column of 64 bits."""
SHOWN = 60


@dataclass(frozen=True)
class WholeNumber:
    """A whole number from ``least`` to ``most``."""

    least: int
    most: int


@dataclass(frozen=True)
class ListOf:
    """A list: each entry looks like ``entry``; ``least`` and ``most`` are its length."""

    entry: Shape
    least: int = 0
    most: int | None = None


@dataclass(frozen=True)
class Items:
    """A list of as many entries, each of which looks like its own shape."""

    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class MappingOf:
    """An object with names of any kind, each value of which looks like ``entry``."""

    entry: Shape


@dataclass(frozen=True)
class Fields:
    """An object with these names; further names may be there.

    Of ``required`` each must be there; of ``together`` all must be where one is.
    """

    known: Mapping[str, Shape]
    required: tuple[str, ...] = ()
    together: tuple[str, ...] = ()


@dataclass(frozen=True)
class Either:
    """A value that looks like one of these."""

    shapes: tuple[Shape, ...] = field(default_factory=tuple)


Shape: TypeAlias = "type | WholeNumber | ListOf | Items | MappingOf | Fields | Either | None"
"""``int`` (below :data:`LARGEST` in size), ``float`` (any number), ``str``, ``bool``, ``object`` (anything), ``None``,
or one of the classes above."""


def maybe(shape: Shape) -> Either:
    """Return the shape of a value that may be None."""
    return Either((shape, None))


def check_shape(value: Any, shape: Shape, place: str) -> None:
    """Check what a value looks like.

    Args:
        value: As JSON has it.
        shape: What it must look like.
        place: Where it is, for the message, such as ``devices``.

    Raises:
        ValueError: it looks otherwise; the message says where and how.
    """
    if isinstance(shape, Either):
        _check_either(value, shape, place)
    elif isinstance(shape, ListOf):
        _check_list(value, shape, place)
    elif isinstance(shape, Items):
        check_shape(value, ListOf(object, len(shape.shapes), len(shape.shapes)), place)
        for number, (one, inner) in enumerate(zip(value, shape.shapes, strict=True)):
            check_shape(one, inner, f"{place}[{number}]")
    elif isinstance(shape, MappingOf | Fields):
        _check_object(value, shape, place)
    elif isinstance(shape, WholeNumber):
        check_shape(value, int, place)
        if not shape.least <= value <= shape.most:
            raise ValueError(f"{place}: {value} is out of range")
    elif not _is_plain(value, shape):
        raise _other(value, _name_of(shape), place)


def _check_either(value: Any, shape: Either, place: str) -> None:
    fitting = None
    for one in shape.shapes:
        try:
            return check_shape(value, one, place)
        except ValueError as error:
            if fitting is None and _kind_of(one) is type(value):
                fitting = str(error)  # the error itself would keep all frames alive that led here, and what they hold
    if fitting is not None:
        raise ValueError(fitting)
    raise _other(value, " or ".join(_name_of(one) for one in shape.shapes), place)


def _check_list(value: Any, shape: ListOf, place: str) -> None:
    if not isinstance(value, list):
        raise _other(value, "a list", place)
    if len(value) < shape.least or (shape.most is not None and len(value) > shape.most):
        raise ValueError(f"{place}: unexpected length {len(value):,} of a list")
    if all(_is_plain(one, shape.entry) for one in value):  # most lists: no place is needed
        return
    for number, one in enumerate(value):
        check_shape(one, shape.entry, f"{place}[{number}]")


def _check_object(value: Any, shape: MappingOf | Fields, place: str) -> None:
    if not isinstance(value, dict):
        raise _other(value, "an object", place)
    if isinstance(shape, MappingOf):
        for name, one in value.items():
            if _is_plain(one, shape.entry):
                continue
            check_shape(one, shape.entry, f"{place}.{name[:SHOWN]}")
        return
    required = shape.required + (shape.together if any(name in value for name in shape.together) else ())
    lacking = [name for name in required if name not in value]
    if lacking:
        raise ValueError(f"{place}: {lacking[0]} is missing".removeprefix(": "))
    for name, inner in shape.known.items():
        if name in value and not _is_plain(value[name], inner):
            check_shape(value[name], inner, f"{place}.{name}".removeprefix("."))


def _is_plain(value: Any, shape: Shape) -> bool:
    """Return whether a value looks like a shape that has no other inside, or like one of those of an ``Either``."""
    if isinstance(shape, Either):
        return any(_is_plain(value, one) for one in shape.shapes)
    if shape is object:
        return True
    if shape is None:
        return value is None
    if shape is int or shape is float:
        is_number = isinstance(value, int | float) if shape is float else isinstance(value, int)
        return is_number and not isinstance(value, bool) and -LARGEST <= value <= LARGEST
    return isinstance(shape, type) and isinstance(value, shape)


def _kind_of(shape: Shape) -> type | None:
    if isinstance(shape, ListOf | Items):
        return list
    return dict if isinstance(shape, MappingOf | Fields) else None


def _name_of(shape: Shape) -> str:
    names: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        str: "a string",
        bool: "true or false",
        None: "null",
    }
    if isinstance(shape, ListOf | Items):
        return "a list"
    shape = int if isinstance(shape, WholeNumber) else shape
    return "an object" if isinstance(shape, MappingOf | Fields | Either) else names.get(shape, "a value")


def _other(value: Any, wanted: str, place: str) -> ValueError:
    shown = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    shown = shown if len(shown) <= SHOWN else shown[: SHOWN - 1] + "…"
    return ValueError(f"{place}: expected {wanted}, found {shown}")
