"""Read the program's modules, optimizers and containers without running any code of the program.

A class of the program may override ``parameters()``, ``__iter__``, ``__hash__`` or a property, and count, log, build or
refuse something there. So attributes come from an object's own dictionary, containers are read through the built-in
type that they extend, and nothing is compared or hashed but by identity. Tensors are read inside
:func:`without_overrides`.
"""

from __future__ import annotations

import weakref
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from types import MemberDescriptorType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

without_overrides = torch._C.DisableTorchFunction
"""Makes a context in which reading a tensor's attribute calls no ``__torch_function__``, of a mode or of a subclass."""

_TENSOR = vars(torch._C.TensorBase)
grad_fn_of: Callable[[Tensor], Any] = _TENSOR["grad_fn"].__get__
"""Reads an attribute of a tensor as torch has it, whatever its class makes of it; so do those below."""
grad_of: Callable[[Tensor], Tensor | None] = _TENSOR["grad"].__get__
is_leaf: Callable[[Tensor], bool] = _TENSOR["is_leaf"].__get__
version_of: Callable[[Tensor], int] = _TENSOR["_version"].__get__
shape_of: Callable[[Tensor], torch.Size] = _TENSOR["shape"].__get__
device_of: Callable[[Tensor], torch.device] = _TENSOR["device"].__get__
layout_of: Callable[[Tensor], torch.layout] = _TENSOR["layout"].__get__
is_on_card: Callable[[Tensor], bool] = _TENSOR["is_cuda"].__get__
storage_of: Callable[[Tensor], torch.UntypedStorage] = _TENSOR["untyped_storage"]
is_floating: Callable[[Tensor], bool] = _TENSOR["is_floating_point"]
is_complex: Callable[[Tensor], bool] = _TENSOR["is_complex"]

CONTAINER_LEVELS = 4
"""How deep containers are looked into for tensors."""


def is_tensor(thing: object) -> bool:
    """Return whether a thing is a tensor by its type; ``isinstance`` would ask a proxy for its ``__class__``."""
    return issubclass(type(thing), Tensor)


def local_part(tensor: Tensor) -> Tensor:
    """Return the tensor that holds the numbers: the shard of this rank, of one that is spread over several."""
    if type(tensor) in (Tensor, nn.Parameter):
        return tensor
    own = attributes_of(tensor)
    found = own["_local_tensor"] if "_local_tensor" in own else _slot(tensor, "_local_tensor")
    return tensor if found is None else found


def attributes_of(thing: object) -> dict[str, Any]:
    """Return the dictionary that holds an object's own attributes; an empty one where it has none."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def entries_of(mapping: object) -> list[tuple[Any, Any]]:
    """Return the entries of a dictionary, of one of its subclasses, or of a mapping of torch's own."""
    kind = type(mapping)
    if issubclass(kind, dict):
        return list(dict.items(mapping))  # type: ignore[arg-type]
    if issubclass(kind, UserDict):
        return entries_of(attributes_of(mapping).get("data"))
    if kind.__module__.startswith("torch.jit."):  # what a scripted module holds
        return list(mapping.items())  # type: ignore[attr-defined]
    return []


def _held(module: nn.Module, kind: str) -> list[tuple[str, Any]]:
    """Return what a module registered: ``_parameters``, ``_buffers`` or ``_modules``, without empty places."""
    return [(name, value) for name, value in entries_of(attributes_of(module).get(kind)) if value is not None]


def parameters_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return a module's own parameters by name."""
    return _held(module, "_parameters")


def buffers_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return a module's own buffers by name."""
    return _held(module, "_buffers")


def children_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return a module's children by name."""
    return [(name, child) for name, child in _held(module, "_modules") if issubclass(type(child), nn.Module)]


def modules_below(top: nn.Module) -> Iterator[tuple[nn.Module | None, str, nn.Module]]:
    """Yield ``(parent, name, module)`` from ``top`` down, in the order of ``nn.Module.named_modules``, each once.

    ``top`` itself has no parent and no name.
    """
    seen: set[int] = set()
    waiting: list[tuple[nn.Module | None, str, nn.Module]] = [(None, "", top)]
    while waiting:
        parent, name, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield parent, name, module
        waiting.extend((module, name, child) for name, child in reversed(children_of(module)))


def holds_tensors(top: nn.Module) -> bool:
    """Return whether a module, or one below it, has a parameter or a buffer."""
    return any(parameters_of(module) or buffers_of(module) for _, _, module in modules_below(top))


def named_parameters(top: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, parameter)`` as ``nn.Module.named_parameters`` does, tied ones once."""
    prefixes: dict[int, str] = {}
    seen: set[int] = set()
    for parent, name, module in modules_below(top):
        prefix = prefixes[id(module)] = "" if parent is None else f"{prefixes[id(parent)]}{name}."
        for own_name, parameter in parameters_of(module):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{prefix}{own_name}", parameter


def parameter_groups(optimizer: Optimizer) -> list[list[Any]]:
    """Return the parameters that an optimizer updates, by group."""
    groups = attributes_of(optimizer).get("param_groups")
    held = [dict(entries_of(group)).get("params") for group in _items(groups)]
    return [list(_items(parameters)) for parameters in held]


def state_of(optimizer: Optimizer) -> list[tuple[Any, Any]]:
    """Return ``(parameter, its state)`` of everything an optimizer keeps state for."""
    return entries_of(attributes_of(optimizer).get("state"))


def tensors_in(thing: object, levels: int = CONTAINER_LEVELS) -> Iterator[Tensor]:
    """Yield the tensors inside nested containers, ``levels`` deep at most."""
    if is_tensor(thing):
        yield thing  # type: ignore[misc]
    elif levels:
        for inner in _items(thing):
            yield from tensors_in(inner, levels - 1)


def _items(thing: object) -> Any:
    """Return what a container holds: the values of a mapping, the elements of a sequence, a dataclass's fields."""
    kind = type(thing)
    if issubclass(kind, (dict, UserDict)):
        return [value for _, value in entries_of(thing)]
    for built_in in (list, tuple, set, frozenset):
        if issubclass(kind, built_in):
            return list(built_in.__iter__(thing))  # type: ignore[arg-type]
    fields = _class_attribute(kind, "__dataclass_fields__")
    if type(fields) is dict:
        own = attributes_of(thing)
        return [own[name] if name in own else _slot(thing, name) for name in fields]
    return ()


def _class_attribute(kind: type, name: str) -> Any:
    """Return an attribute of a class as it stands there, bound to nothing."""
    for one in type.__getattribute__(kind, "__mro__"):
        if name in vars(one):
            return vars(one)[name]
    return None


def _slot(thing: object, name: str) -> Any:
    """Return what an object keeps in a slot; None where the name is no slot, or nothing was put there."""
    slot = _class_attribute(type(thing), name)
    if type(slot) is not MemberDescriptorType:
        return None
    try:
        return slot.__get__(thing)
    except AttributeError:
        return None


class WeakIdentitySet:
    """Objects that are alive, found by identity: ``weakref.WeakSet`` would call their ``__hash__`` and ``__eq__``."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, thing: object) -> None:
        """Take in an object."""
        self._references[id(thing)] = weakref.ref(thing)

    def update(self, things: Iterable[object]) -> None:
        """Take in several objects."""
        for thing in things:
            self.add(thing)

    def __iter__(self) -> Iterator[Any]:
        return iter([thing for one in list(self._references.values()) if (thing := one()) is not None])

    def __bool__(self) -> bool:
        return any(True for _ in self)
