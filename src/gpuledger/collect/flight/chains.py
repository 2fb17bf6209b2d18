"""Objects of one class of which each refers to the next: linked lists, and exceptions with their causes."""

from __future__ import annotations

from collections.abc import Iterator
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


def _linked(one: Any) -> Iterator[Any]:
    if issubclass(type(one), BaseException):
        for cause in _CAUSES:
            yield cause.__get__(one)
    yield from list(attributes_of(one).values())
