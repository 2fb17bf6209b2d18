"""Paths and classes of registered modules, by their ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from gpuledger.collect.adapter.compiler.graph_nodes import common_path
from gpuledger.collect.adapter.held_tensors import KeyedReference
from gpuledger.collect.adapter.program_objects import kind_name


class ModulePlaces(list[tuple[str, int]]):
    """Path of each module below its outermost module, and the id of that one, in the order of the modules' ids."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: dict[tuple[str, int], int] = {}
        self._counted = 0

    def at(self, path: str, root_id: int) -> int:
        """Return the id of the module with a path in an outermost module; -1 if there is none."""
        count = len(self)
        for number in range(self._counted, count):
            self._ids[self[number]] = number  # a wrapper and the model in it have one path: the model counts
        self._counted = count
        return self._ids.get((path, root_id), -1)

    def around(self, module_ids: Collection[int]) -> int:
        """Return the id of the innermost module that contains all of some modules; -1 if no module does."""
        places = [("", -1) if number < 0 else self[number] for number in module_ids]
        roots = {root_id for _, root_id in places}
        if len(roots) != 1 or min(module_ids) < 0:
            return -1
        return self.at(common_path(path for path, _ in places), roots.pop())


class ModuleClasses:
    """Classes of modules by their id. A module can change its class, as a lazy one does in its first call."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        """Names of all of them."""
        self._known: list[tuple[int, str]] = []
        """``id`` and name of a class, by the module's id."""
        self._changed: dict[int, str] = {}

    def add(self, module: nn.Module) -> str:
        """Add the module with the next id, and return the name of its class."""
        name = kind_name(module)
        self._known.append((id(type(module)), name))
        self.names.add(name)
        return name

    def of(self, number: int) -> str:
        """Return the name of the class of a module."""
        return self._known[number][1]

    def changed(self, numbers: Mapping[int, int], references: dict[int, KeyedReference]) -> list[tuple[int, str]]:
        """Return the id of each module that has changed its class until now, and the name of the class.

        Args:
            numbers: Ids of modules, by ``id``.
            references: References to the modules, by ``id``.
        """
        for key, reference in references.copy().items():
            number, module = numbers.get(key, -1), reference()
            if module is None or number < 0 or self._known[number][0] == id(type(module)):
                continue
            name, (_, before) = kind_name(module), self._known[number]
            self._known[number] = id(type(module)), name
            if name != before:
                self._changed[number] = name
                self.names.add(name)
        return list(self._changed.copy().items())
