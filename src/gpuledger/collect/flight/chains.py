"""Objects of one class that refer to the next: linked lists, exceptions with causes, functions in closures."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any

from gpuledger.collect.adapter.program_objects import attributes_of
from gpuledger.collect.flight.time_limit import CHECK_EVERY, TimeLimit

SHORTEST = 3
LONGEST = 10_000
"""Largest number of objects that are followed, which takes some ms."""

_CAUSES: tuple[Any, ...] = (BaseException.__cause__, BaseException.__context__)


def chain_below(first: Any, limit: TimeLimit) -> tuple[int, Any]:
    """Return the number of objects in the chain that begins with an object, and the last one; 1 if there is none.

    Raises:
        OutOfTimeError: The time was over before the end of the chain.
    """
    kind = type(first)
    seen = {id(first)}
    last = first
    while len(seen) < LONGEST:
        following = next((one for one in _linked(last) if type(one) is kind and id(one) not in seen), None)
        if following is None:
            break
        if len(seen) % CHECK_EVERY == 0:
            limit.check()
        seen.add(id(following))
        last = following
    return len(seen), last


def named_values(function: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield what a function or a partial keeps: a name, of what it is that name, and the value; "" without a name.

    These are variables of a function's closure and its defaults, and what a partial calls, with its arguments.
    """
    if type(function) is FunctionType:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            yield name, f"closure of {function.__name__}", _content_of_cell(cell)
        defaults, where = function.__defaults__ or (), f"default of {function.__name__}"
        first = code.co_argcount - len(defaults)
        for name, value in zip(code.co_varnames[max(first, 0) : code.co_argcount], defaults, strict=False):
            yield name, where, value
        for name, value in (function.__kwdefaults__ or {}).items():
            yield name, where, value
    elif type(function) is functools.partial:
        for value in (function.func, *function.args):
            yield "", "", value
        for name, value in dict.items(function.keywords):
            yield name, "argument of a partial", value


def _content_of_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _linked(one: Any) -> Iterator[Any]:
    if issubclass(type(one), BaseException):
        for cause in _CAUSES:
            yield cause.__get__(one)
    for *_, value in named_values(one):
        yield value
    yield from list(attributes_of(one).values())
