"""Wrappers that are made again and again around the same model. They share ids."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, MutableMapping

from torch import nn

from gpuledger.collect.adapter.program_objects import buffers_of, children_of, kind_name, parameters_of
from gpuledger.collect.attribution.outermost_modules import named_modules
from gpuledger.collect.attribution.roster.places import ModuleClasses, ModulePlaces

Wrapper = tuple[int, tuple[tuple[str, str], ...], tuple[tuple[str, int], ...]]
"""The module that calls a wrapper, paths and classes of its new modules, and paths and ids of the registered ones."""

MOST_ALIVE = 64
"""Maximum number of wrappers of one kind that are remembered at a time."""


class PassingWrappers:
    """Modules without tensors of their own that are made for each use of a model, as by a solver of equations.

    Each of them that was freed leaves its ids to the next one of the same classes around the same model.

    Args:
        places: Where registered modules are.
        classes: Their classes.
        freed: Ids of the outermost modules that were freed; without one that got another module.
        contained: What is a part of another outermost module, by id; without models in such wrappers.
    """

    def __init__(
        self,
        places: ModulePlaces,
        classes: ModuleClasses,
        freed: set[int],
        contained: MutableMapping[int, list[int | str]],
    ) -> None:
        self.models: dict[int, int] = {}
        """Id of a model that is in such outermost wrappers, and belongs to none of them -> id of the wrapper."""
        self.on_model: Callable[[nn.Module, int], None] = lambda *_: None
        """Called with a model, and its id, that was found first in a wrapper."""
        self._places, self._classes = places, classes
        self._freed, self._contained = freed, contained
        self._known: dict[Wrapper, list[tuple[weakref.ref[nn.Module], list[int]]]] = {}

    def wrapper_of(self, top: nn.Module, inside: int, numbers: Mapping[int, int]) -> Wrapper | None:
        """Return what tells a wrapper apart; None if a module is no wrapper.

        Args:
            top: A module that is not registered.
            inside: Id of the module that calls it; -1 for an outermost module.
            numbers: ``id`` of a registered module -> its id.
        """
        if not children_of(top) or _has_tensors(top):
            return None
        made, parts = [], []
        for parent, plain, module in named_modules(top):
            known = numbers.get(id(module))
            if known is None and _has_tensors(module):
                return None
            if known is None:
                made.append((plain, kind_name(module)))
            elif parent is not None and id(parent) not in numbers:
                parts.append((plain, known))
        return inside, tuple(made), tuple(parts)

    def take_over(self, wrapper: Wrapper, top: nn.Module, numbers: Mapping[int, int]) -> list[tuple[nn.Module, int]]:
        """Return the modules of a wrapper that are not registered, with the ids that another one has left them.

        Empty if there was none of its kind, or if all are alive.
        """
        left = self._of_freed(wrapper)
        is_first = not left
        left = left or self._of_first(wrapper)
        if not left:
            return []
        found = [module for _, _, module in named_modules(top)]
        parts = {part for _, part in wrapper[2]}
        for module in found:
            number = numbers.get(id(module), -1)
            if self._contained.get(number, [-1, -1])[1] == left[0]:
                del self._contained[number]
            if number in parts and wrapper[0] < 0 and (is_first or not self._places[number][0]):
                is_new = number not in self.models
                self.models[number] = left[0]
                if is_first and is_new:
                    self.on_model(module, number)
        self._freed.discard(left[0])
        self.keep(wrapper, top, left)
        return list(zip((module for module in found if id(module) not in numbers), left, strict=True))

    def _of_first(self, wrapper: Wrapper) -> list[int]:
        """Return the ids of the first outermost wrapper of a kind, with which its model was registered."""
        inside, made, parts = wrapper
        roots = {self._places[part][1] if self._places[part][0] == plain else -1 for plain, part in parts}
        root = roots.pop() if len(roots) == 1 and inside < 0 else -1
        if root not in self._freed:
            return []
        left = [self._places.at(plain, root) for plain, _ in made]
        kinds = [self._classes.of(number) if number >= 0 else "" for number in left]
        return left if kinds == [kind for _, kind in made] else []

    def _of_freed(self, wrapper: Wrapper) -> list[int]:
        """Return the ids of a remembered wrapper that was freed, and forget it; empty if there is none."""
        known = self._known.get(wrapper, [])
        for place, (reference, numbers) in enumerate(known):
            if reference() is None:
                del known[place]
                return numbers
        return []

    def keep(self, wrapper: Wrapper, top: nn.Module, numbers: list[int]) -> None:
        """Remember the ids of a wrapper's modules."""
        known = self._known.setdefault(wrapper, [])
        if len(known) < MOST_ALIVE:
            known.append((weakref.ref(top), numbers))


def _has_tensors(module: nn.Module) -> bool:
    return bool(parameters_of(module) or buffers_of(module))
