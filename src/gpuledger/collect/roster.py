"""The roster: a number for every module seen, and the names of its parameters and buffers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gpuledger.collect import torch_private
from gpuledger.collect.alive import Living
from gpuledger.model.journal import Part

_WRAPPERS = frozenset({"DistributedDataParallel", "DataParallel", "OptimizedModule", "FullyShardedDataParallel"})
"""Classes whose only child is the user's model: its children go by the names they have without the wrapper."""
_WRAPPED_NAMES = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module"})


SCOPES = -2
"""Stands for the outermost module in the numbers of scopes' names."""


class Roster:
    """Numbers modules by identity, holding none of them alive.

    ``module_ids`` maps ``id(module)`` to its number; an entry goes when its module does, so that a reused address is
    not taken for the module that was there before. ``parameters`` and ``buffers`` list ``(weakref, name_id,
    module_id)``, tied ones once. A name's number belongs to one outermost module: two may hold a ``0.weight`` each.
    """

    def __init__(self) -> None:
        self.module_ids: dict[int, int] = {}
        self.parameters: list[tuple[weakref.ref[Any], int, int]] = []
        self.buffers: list[tuple[weakref.ref[Any], int, int]] = []
        self.called_roots: set[int] = set()
        self._refs: dict[int, weakref.ref[Any]] = {}
        self._known_tensors: dict[int, weakref.ref[Any]] = {}
        self._name_ids: dict[tuple[int, str], int] = {}
        self._new_names: list[str] = []
        self._new_modules: list[dict[str, Any]] = []
        self._count = 0
        self._places: list[tuple[str, int]] = []
        self._passing: dict[tuple[int, str], int] = {}
        self._roots_with_tensors: set[int] = set()

    def name_id(self, name: str, root_id: int = -1) -> int:
        """Return the number of a name below an outermost module, given out on first use."""
        number = self._name_ids.get((root_id, name))
        if number is None:
            number = self._name_ids[root_id, name] = len(self._name_ids)
            self._new_names.append(name)
        return number

    def note_called(self, module_id: int) -> None:
        """Note that a module was called as an outermost one."""
        self.called_roots.add(self._places[module_id][1])

    def holds_tensors(self, module_id: int) -> bool:
        """Return whether a module's outermost one held parameters or buffers when it was met."""
        return self._places[module_id][1] in self._roots_with_tensors

    def path_of(self, module_id: int) -> str:
        """Return a module's path below its outermost one."""
        return self._places[module_id][0]

    def enroll(self, module: nn.Module, *, inside: int = -1) -> int:
        """Return a module's number, numbering everything below it that has none yet.

        Args:
            module: An outermost module, or one met inside another that does not hold it as a child (a loss made anew
                in each forward): those go by their class below the module they were met in, one number for each class.
            inside: Number of the module it was met in; -1 for an outermost one.
        """
        known = self.module_ids.get(id(module))
        if known is not None:
            return known
        bare = not module._parameters and not module._buffers and not module._modules
        key = (inside, type(module).__name__)
        if bare and key in self._passing:
            return self._point(module, self._passing[key])
        number = self._add_tree(module, inside)
        if bare:
            self._passing[key] = number
        return number

    def _add_tree(self, top: nn.Module, inside: int) -> int:
        """Number ``top`` and everything below it, and take in its parameters and buffers."""
        first = self._count
        root_id = self._places[inside][1] if inside >= 0 else first
        prefix = f"{self._places[inside][0]}.{type(top).__name__}".lstrip(".") if inside >= 0 else ""
        numbers: dict[str, int] = {}
        named = list(_named(top))
        for path, plain, module in named:
            if id(module) not in self.module_ids:
                parent = numbers.get(path.rpartition(".")[0], first) if path else inside
                numbers[path] = self._add(module, _below(prefix, plain), parent, root_id)
        for _, plain, module in named:
            self._add_tensors(_below(prefix, plain), module, root_id)
        if any(True for _ in (*top.parameters(), *top.buffers())):
            self._roots_with_tensors.add(root_id)
        return first

    def _add(self, module: nn.Module, path: str, parent: int, root_id: int) -> int:
        number = self._count
        self._count += 1
        self._places.append((path, root_id))
        self._point(module, number)
        self._new_modules.append(
            {
                "path": path,
                "class_name": type(module).__name__,
                "parent": parent,
                "root": root_id,
                "parameters": sum(1 for p in module._parameters.values() if p is not None),
                "compiled": type(module).__name__ == "OptimizedModule"
                or getattr(module, "_compiled_call_impl", None) is not None,
            }
        )
        return number

    def _point(self, module: nn.Module, number: int) -> int:
        key = id(module)
        self.module_ids[key] = number
        self._refs[key] = weakref.ref(module, lambda _, key=key: self._forget(key))  # type: ignore[misc]
        return number

    def _forget(self, key: int) -> None:
        self.module_ids.pop(key, None)
        self._refs.pop(key, None)

    def _add_tensors(self, path: str, module: nn.Module, root_id: int) -> None:
        owner = self.module_ids[id(module)]
        for kept, own in ((self.parameters, module._parameters), (self.buffers, module._buffers)):
            for name, tensor in own.items():
                if tensor is None or self.is_known(tensor):
                    continue
                kept.append((self._remember(tensor), self.name_id(_below(path, name), root_id), owner))

    def add_loose_parameter(self, tensor: Any, name: str) -> None:
        """Take in a tensor that an optimizer updates and no module owns."""
        if not self.is_known(tensor):
            self.parameters.append((self._remember(tensor), self.name_id(name), -1))

    def is_known(self, tensor: Any) -> bool:
        """Return whether a tensor is a parameter or buffer met before."""
        known = self._known_tensors.get(id(tensor))
        return known is not None and known() is tensor

    def _remember(self, tensor: Any) -> weakref.ref[Any]:
        reference = self._known_tensors[id(tensor)] = weakref.ref(tensor)
        return reference

    def enroll_alive(self, living: Living) -> list[Optimizer]:
        """Enroll every module with parameters or buffers that is alive and was not seen yet (an EMA copy, a teacher).

        Returns:
            The optimizers that are alive.
        """
        modules = living.modules()
        optimizers = [thing for thing in modules if isinstance(thing, Optimizer)]
        found = [
            thing
            for thing in modules
            if isinstance(thing, nn.Module)
            and id(thing) not in self.module_ids
            and "_parameters" in thing.__dict__
            and not torch_private.is_compilers_own(thing)
        ]
        inner = {id(child) for module in found for child in module.children()}
        for module in found:
            if id(module) not in inner and any(True for _ in (*module.parameters(), *module.buffers())):
                self.enroll(module)
        return optimizers

    def weights_version(self) -> int:
        """Return a number that changes with every update of a parameter in place."""
        return sum(weight._version for reference, _, _ in self.parameters if (weight := reference()) is not None)

    def drain(self, part: Part) -> None:
        """Move what is new since the last drain into ``part``."""
        part.names += self._new_names
        part.modules += self._new_modules
        part.facts["called_roots"] = sorted(self.called_roots)
        self._new_names, self._new_modules = [], []


def _named(top: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield the path, the path without the pieces that wrappers put in, and each module from ``top`` down."""
    seen: dict[str, tuple[str, bool]] = {}
    for path, module in top.named_modules():
        above, _, name = path.rpartition(".")
        plain, wrapped = seen[above] if path else ("", False)
        if path and not (wrapped and name in _WRAPPED_NAMES):
            plain = _below(plain, name)
        seen[path] = plain, type(module).__name__ in _WRAPPERS
        yield path, plain, module


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
