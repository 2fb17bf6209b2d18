"""The roster: a number for every module seen, and the names of its parameters and buffers."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gpuledger.collect.alive import alive
from gpuledger.model.journal import Part

_WRAPPERS = frozenset({"DistributedDataParallel", "DataParallel", "OptimizedModule", "FullyShardedDataParallel"})
"""Classes whose only child is the user's model: its children go by the names they have without the wrapper."""
_WRAPPED_NAMES = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


class Roster:
    """Numbers modules by identity, holding none of them alive.

    ``module_ids`` maps ``id(module)`` to its number; an entry goes when its module does, so that a reused address is
    not taken for the module that was there before. ``tensors`` lists ``(weakref, kind, name_id, module_id)`` of every
    parameter and buffer, tied ones once.
    """

    def __init__(self) -> None:
        self.module_ids: dict[int, int] = {}
        self.parameters: list[tuple[weakref.ref[Any], int, int]] = []
        self.buffers: list[tuple[weakref.ref[Any], int, int]] = []
        self.called_roots: set[int] = set()
        self._refs: dict[int, weakref.ref[Any]] = {}
        self._known_tensors: dict[int, weakref.ref[Any]] = {}
        self._name_ids: dict[str, int] = {}
        self._new_names: list[str] = []
        self._new_modules: list[dict[str, Any]] = []
        self._count = 0
        self._places: list[tuple[str, int]] = []
        self._passing: dict[tuple[int, str], int] = {}

    def name_id(self, name: str) -> int:
        """Return the number of a name, given out on first use."""
        number = self._name_ids.get(name)
        if number is None:
            number = self._name_ids[name] = len(self._name_ids)
            self._new_names.append(name)
        return number

    def enroll(self, module: nn.Module, *, inside: int = -1, called: bool = True) -> int:
        """Return a module's number, numbering everything below it that has none yet.

        Args:
            module: An outermost module, or one met inside another that does not hold it as a child (a loss made anew
                in each forward): those go by their class below the module they were met in, one number for each class.
            inside: Number of the module it was met in; -1 for an outermost one.
            called: Whether it was called, or only found alive.
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
        if inside < 0 and called:
            self.called_roots.add(number)
        return number

    def _add_tree(self, top: nn.Module, inside: int) -> int:
        """Number ``top`` and everything below it, and take in its parameters and buffers."""
        first = self._count
        root_id = self._places[inside][1] if inside >= 0 else first
        prefix = f"{self._places[inside][0]}.{type(top).__name__}".lstrip(".") if inside >= 0 else ""
        numbers: dict[str, int] = {}
        fresh = [(path, module) for path, module in top.named_modules() if id(module) not in self.module_ids]
        for path, module in fresh:
            parent = numbers.get(path.rpartition(".")[0], first) if path else inside
            full = f"{prefix}.{path}".strip(".")
            numbers[path] = self._add(module, full, parent, root_id)
        for path, module in top.named_modules():
            self._add_tensors(f"{prefix}.{path}".strip("."), module)
        return first

    def _add(self, module: nn.Module, path: str, parent: int, root_id: int) -> int:
        number = self._count
        self._count += 1
        self._places.append((_plain(path), root_id))
        self._point(module, number)
        self._new_modules.append(
            {
                "path": _plain(path),
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

    def _add_tensors(self, path: str, module: nn.Module) -> None:
        owner = self.module_ids[id(module)]
        for kept, own in ((self.parameters, module._parameters), (self.buffers, module._buffers)):
            for name, tensor in own.items():
                if tensor is None or self._is_known(tensor):
                    continue
                qualified = _plain(f"{path}.{name}" if path else name)
                kept.append((self._remember(tensor), self.name_id(qualified), owner))

    def add_loose_parameter(self, tensor: Any, name: str) -> None:
        """Take in a tensor that an optimizer updates and no module owns."""
        if not self._is_known(tensor):
            self.parameters.append((self._remember(tensor), self.name_id(name), -1))

    def _is_known(self, tensor: Any) -> bool:
        known = self._known_tensors.get(id(tensor))
        return known is not None and known() is tensor

    def _remember(self, tensor: Any) -> weakref.ref[Any]:
        reference = self._known_tensors[id(tensor)] = weakref.ref(tensor)
        return reference

    def enroll_alive(self) -> list[Optimizer]:
        """Enroll every module with parameters or buffers that is alive and was not seen yet (an EMA copy, a teacher).

        Returns:
            The optimizers that are alive.
        """
        modules = alive((nn.Module, Optimizer))
        optimizers = [thing for thing in modules if isinstance(thing, Optimizer)]
        found = [
            thing
            for thing in modules
            if isinstance(thing, nn.Module) and id(thing) not in self.module_ids and "_parameters" in thing.__dict__
        ]
        inner = {id(child) for module in found for child in module.children()}
        for module in found:
            if id(module) not in inner and any(True for _ in (*module.parameters(), *module.buffers())):
                self.enroll(module, called=False)
        return optimizers

    def drain(self, part: Part) -> None:
        """Move what is new since the last drain into ``part``."""
        part.names += self._new_names
        part.modules += self._new_modules
        part.facts["called_roots"] = sorted(self.called_roots)
        self._new_names, self._new_modules = [], []


def _plain(path: str) -> str:
    """Return a qualified name without the pieces that wrappers put in."""
    for piece in _WRAPPED_NAMES:
        while path.startswith(piece):
            path = path.removeprefix(piece)
    return path.replace("._orig_mod.", ".")
