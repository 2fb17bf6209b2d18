"""Containers that keep a limited number of elements, such as ``deque(maxlen=…)`` and ``lru_cache(maxsize=…)``."""

from __future__ import annotations

import functools
import gc
from collections import deque
from itertools import islice
from typing import Any

from gpuledger.collect.adapter.program_objects import attributes_of, parameter_groups

CACHE = type(functools.lru_cache(maxsize=None)(len))
"""Class of functions with ``functools.lru_cache``."""

_LONGEST_CACHE = 4_096
"""Largest number of results with which a cache with a limit is looked into."""
_MAXLEN: Any = deque.maxlen


def bound_of(container: Any) -> int | None:
    """Return the largest number of elements that a container keeps; None if there is no limit."""
    if issubclass(type(container), deque):
        bound = _MAXLEN.__get__(container)
    else:
        bound = CACHE.cache_info(container).maxsize if type(container) is CACHE else None
    return bound if type(bound) is int else None


def parameter_count(optimizer: Any) -> int:
    """Return the number of parameters of an optimizer, of which each has one entry in its state at most."""
    return sum(map(len, parameter_groups(optimizer)))


def results_of(cached: Any) -> dict[Any, Any] | list[Any] | None:
    """Return what a function with ``functools.lru_cache`` keeps; None if there is too much of it.

    With a limit, the cache's dict has entries of a private type. The results are what the cache itself refers to.
    """
    own, info = attributes_of(cached), CACHE.cache_info(cached)
    if info.maxsize is not None and not 0 < info.currsize <= _LONGEST_CACHE:
        return None
    referents = gc.get_referents(cached)
    places = [place for place, one in enumerate(referents) if type(one) is dict and one is not own]
    if not places:
        return None
    entries: dict[Any, Any] = referents[places[-1]]
    if info.maxsize is None:
        return entries
    kinds = {id(CACHE), *(id(type(one)) for one in islice(dict.values(entries), 1))}
    pairs = [one for one in referents[: places[-1]] if id(one) not in kinds]
    return pairs[1::2]
