"""References that keep nothing alive: to a tensor by its place in a module or an optimizer, or by identity."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gpuledger.collect.adapter.program_objects import attributes_of, entries_of, parameter_groups

IN_GROUPS = "param_groups"
"""Kind of a tensor that an optimizer updates and no module owns.

Its key is the group's index and its index in the group.
"""


class KeyedReference(weakref.ref[Any]):
    """A weak reference with a number, by which its target is still known after it was freed.

    Compared by identity, so no ``__hash__`` of the program is called.
    """

    __slots__ = ("key",)
    key: int


class HeldTensor:
    """The place of a parameter or buffer. Calling it returns the tensor, or None if it no longer exists.

    Not a weak reference to the tensor: ``torch.utils.swap_tensors`` refuses tensors that have one.
    """

    __slots__ = ("_holder", "_key", "_kind")

    def __init__(self, holder: nn.Module | Optimizer, kind: str, key: Any) -> None:
        self._holder = weakref.ref(holder)
        self._kind = kind
        self._key = key

    def __call__(self) -> Any:
        """Return the tensor."""
        holder = self._holder()
        if holder is None:
            return None
        if self._kind != IN_GROUPS:
            held = attributes_of(holder).get(self._kind)
            return dict.get(held, self._key) if isinstance(held, dict) else dict(entries_of(held)).get(self._key)
        group, place = self._key
        try:
            return parameter_groups(holder)[group][place]  # type: ignore[arg-type]
        except IndexError:
            return None


class WeakIdentitySet:
    """A set of weak references compared by identity. ``weakref.WeakSet`` would call ``__hash__`` and ``__eq__``."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, thing: object) -> None:
        """Add an object."""
        self._references[id(thing)] = weakref.ref(thing)

    def update(self, things: Iterable[object]) -> None:
        """Add several objects."""
        for thing in things:
            self.add(thing)

    def __contains__(self, thing: object) -> bool:
        reference = self._references.get(id(thing))
        return reference is not None and reference() is thing

    def __iter__(self) -> Iterator[Any]:
        return iter([thing for one in list(self._references.values()) if (thing := one()) is not None])

    def __bool__(self) -> bool:
        return any(True for _ in self)
