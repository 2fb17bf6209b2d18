"""Read the program's modules, optimizers and containers without running code of the program.

A class of the program can override ``parameters()``, ``__iter__``, ``__hash__`` or a property, and do anything there.
So attributes are read from the object's ``__dict__``, containers through the built-in type that they extend, and
objects are compared and hashed by identity only. Tensors are read inside :func:`without_overrides`.
"""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from math import prod
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

without_overrides = torch._C.DisableTorchFunction
"""Context in which reading a tensor's attributes calls no ``__torch_function__`` of a mode or a subclass."""

SIMULATED_PARTS = "_gpuledger_parts"
"""Attribute of a simulated sparse tensor: the tensors of its indices, and of its values."""
_TENSOR = vars(torch._C.TensorBase)
grad_fn_of: Callable[[Tensor], Any] = _TENSOR["grad_fn"].__get__
"""Reads a tensor attribute from torch's base class, even if the tensor's class overrides it, as do all below."""
grad_of: Callable[[Tensor], Tensor | None] = _TENSOR["grad"].__get__
_hooks_of = _TENSOR.get("_post_accumulate_grad_hooks")
gradient_hooks_of: Callable[[Tensor], Any] = (lambda _: None) if _hooks_of is None else _hooks_of.__get__
"""Reads what is called when a tensor's gradient is complete; None if there is nothing."""
requires_grad: Callable[[Tensor], bool] = _TENSOR["requires_grad"].__get__
_is_leaf: Callable[[Tensor], bool] = _TENSOR["is_leaf"].__get__
version_of: Callable[[Tensor], int] = _TENSOR["_version"].__get__
shape_of: Callable[[Tensor], torch.Size] = _TENSOR["shape"].__get__
dimensions_of: Callable[[Tensor], int] = _TENSOR["dim"]
device_of: Callable[[Tensor], torch.device] = _TENSOR["device"].__get__
layout_of: Callable[[Tensor], torch.layout] = _TENSOR["layout"].__get__
is_on_card: Callable[[Tensor], bool] = _TENSOR["is_cuda"].__get__
device_number: Callable[[Tensor], int] = _TENSOR["get_device"]
"""Reads the index of a tensor's device, -1 for the CPU."""
storage_of: Callable[[Tensor], torch.UntypedStorage] = _TENSOR["untyped_storage"]
_data_address_of: Callable[[Tensor], int] = _TENSOR["data_ptr"]
_offset_of: Callable[[Tensor], int] = _TENSOR["storage_offset"]
itemsize_of: Callable[[Tensor], int] = _TENSOR["element_size"]
is_floating: Callable[[Tensor], bool] = _TENSOR["is_floating_point"]
is_complex: Callable[[Tensor], bool] = _TENSOR["is_complex"]

bases_of: Callable[[type], tuple[type, ...]] = vars(type)["__mro__"].__get__
_names_of: Callable[[type], Any] = vars(type)["__dict__"].__get__

_LOSSES = "torch.nn.modules.loss"

CONTAINER_LEVELS = 4
"""Maximum nesting depth of containers that are searched for tensors."""


_module_of: Callable[[type], object] = vars(type)["__module__"].__get__

class_name: Callable[[type], str] = vars(type)["__name__"].__get__
"""Reads the name of a class, whatever its metaclass says."""


def module_of_class(kind: type) -> str:
    """Return the name of the module that defines a class, whatever its metaclass says; "" if it is unknown."""
    found = _module_of(kind)
    return found if type(found) is str else ""


def is_exactly(thing: object, *kinds: type) -> bool:
    """Return whether an object is of one of these classes and of none derived from them.

    ``type(thing) in kinds`` would call ``__eq__`` or ``__hash__`` of a metaclass.
    """
    kind = type(thing)
    for one in kinds:  # noqa: SIM110  a generator would take three times as long
        if kind is one:
            return True
    return False


def is_tensor(thing: object) -> bool:
    """Return whether an object's type is a tensor. ``isinstance`` would ask a proxy for its ``__class__``."""
    return issubclass(type(thing), Tensor)


def known_sizes(tensor: Tensor) -> tuple[int, ...]:
    """Return a tensor's sizes before the first one that is no number, which the lengths of a nested tensor are."""
    try:
        return tuple(takewhile(lambda size: type(size) is int, shape_of(tensor)))
    except RuntimeError:  # a nested tensor without the jagged layout has no sizes
        return ()


def local_part(tensor: Tensor) -> Tensor:
    """Return the local tensor of a distributed tensor (this rank's shard); otherwise the tensor itself."""
    if is_exactly(tensor, Tensor, nn.Parameter):
        return tensor
    own = attributes_of(tensor)
    found = own["_local_tensor"] if "_local_tensor" in own else slot_of(tensor, "_local_tensor")
    return tensor if found is None else found


def is_wrapper(kind: type) -> bool:
    """Return whether a class wraps other tensors, as a jagged tensor does. A distributed tensor does not count as one.

    Only its own operators, on the tensors inside, create memory.
    """
    return _class_attribute(kind, "__tensor_flatten__") is not None and _class_attribute(kind, "_local_tensor") is None


def wrapped_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that are attributes of a wrapper, and those inside of these; empty for other tensors."""
    if is_exactly(tensor, Tensor, nn.Parameter) or not is_wrapper(type(tensor)):
        return []
    own = [one for one in list(attributes_of(tensor).values()) if is_tensor(one) and one is not tensor]
    return [inner for one in own for inner in wrapped_tensors(one) or [local_part(one)]]


def storage_address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage; 0 if it is empty or has none.

    Creates no Python object for the storage, which torch would keep as long as the storage.
    """
    if not is_exactly(tensor, Tensor, nn.Parameter):
        kinds = sys.modules.get("torch._subclasses.fake_tensor")
        if kinds is not None and issubclass(type(tensor), kinds.FakeTensor):
            return 0  # reading its address prints a warning
    try:
        address = _data_address_of(tensor)
        return address - _offset_of(tensor) * itemsize_of(tensor) if address else 0
    except (RuntimeError, NotImplementedError):  # functional and wrapper tensors raise
        return 0


def place_in_memory(tensor: Tensor) -> tuple[int, int, tuple[int, ...]] | None:
    """Return what only tensors of the same elements share: storage address, offset and sizes; None without an address.

    A parameter and its ``detach()`` are two such tensors.
    """
    address = storage_address(tensor)
    return (address, _offset_of(tensor), known_sizes(tensor)) if address else None


def is_later_part(tensor: Tensor) -> bool:
    """Return whether a tensor is one of several parts of its storage, and not the first: as much comes before it."""
    try:
        return _offset_of(tensor) >= prod(known_sizes(tensor)) > 0
    except (RuntimeError, NotImplementedError):  # sparse and wrapper tensors have no storage
        return False


def innermost_tensor(tensor: Any) -> Any:
    """Return the tensor inside the wrappers of ``torch.func``; without one, the tensor itself."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_batched(tensor: Any) -> bool:
    """Return whether ``torch.vmap`` hides a dimension of a tensor: its sizes are those of one of many."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def attributes_of(thing: object) -> dict[str, Any]:
    """Return an object's ``__dict__``; empty if it has none. A property of that name is not called."""
    for base in bases_of(type(thing)):
        reader = _names_of(base).get("__dict__")
        if type(reader) is GetSetDescriptorType or type(reader) is MemberDescriptorType:
            found = reader.__get__(thing)
            return found if type(found) is dict else {}
    return {}


def items_of(table: dict[_Key, _Value], most: int | None = None) -> list[tuple[_Key, _Value]]:
    """Return the (first) items of a dictionary that other threads and finalizers can change meanwhile.

    Python 3.11 can collect garbage while it makes the pairs, and so run a finalizer or another thread. A copy makes
    none. It is the second choice, because it can compare keys of the program.
    """
    try:
        return list(islice(dict.items(table), most))
    except RuntimeError:
        return list(islice(dict.copy(table).items(), most))


def entries_of(mapping: object) -> list[tuple[Any, Any]]:
    """Return the items of a dictionary, of a dict subclass, or of one of torch's own mappings."""
    kind = type(mapping)
    if issubclass(kind, dict):
        return items_of(mapping)  # type: ignore[arg-type]
    if _is_user_dict(kind):
        return entries_of(attributes_of(mapping).get("data"))
    if module_of_class(kind).startswith("torch.jit."):  # the containers of a scripted module
        return list(mapping.items())  # type: ignore[attr-defined]
    return []


def _held(module: nn.Module, kind: str) -> list[tuple[str, Any]]:
    """Return a module's ``_parameters``, ``_buffers`` or ``_modules`` without None entries."""
    return [(name, value) for name, value in entries_of(attributes_of(module).get(kind)) if value is not None]


def parameters_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return a module's own parameters as ``(name, parameter)``."""
    return _held(module, "_parameters")


def buffers_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return a module's own buffers as ``(name, buffer)``."""
    return _held(module, "_buffers")


SCRIPTED = "_actual_script_module"
"""Attribute of an object of a class derived from ``torch.jit.ScriptModule``: the module that has its parameters."""


def children_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return a module's children as ``(name, module)``, also the scripted module inside an object of its class."""
    held = [*_held(module, "_modules"), (SCRIPTED, attributes_of(module).get(SCRIPTED))]
    return [(name, child) for name, child in held if issubclass(type(child), nn.Module)]


def kind_name(module: nn.Module) -> str:
    """Return the name of a module's class: the one that was scripted, or that ``fully_shard`` has replaced."""
    scripted = attributes_of(module).get("_c")
    if scripted is not None and is_exactly(scripted, torch._C.ScriptModule):
        return str(scripted._type().name())
    name, bases = class_name(type(module)), bases_of(type(module))
    if module_of_class(bases[1]).startswith("torch.distributed."):  # FSDPBlock, which derives from FSDPModule and Block
        plain = next(class_name(one) for one in bases[1:] if not module_of_class(one).startswith("torch.distributed."))
        return plain if name.endswith(plain) else name
    return name


def modules_below(top: nn.Module) -> Iterator[tuple[nn.Module | None, str, nn.Module]]:
    """Yield ``(parent, name, module)`` from ``top`` down, each once, in the order of ``nn.Module.named_modules``.

    For ``top`` itself, parent is None and name is empty.
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
    """Return whether a module or one of its descendants has a parameter, a buffer, or packed or plain weights.

    Quantized layers keep their weights in an object of TorchScript, and some modules in a tensor that they do not
    register.
    """
    return any(
        parameters_of(module) or buffers_of(module) or any(map(_is_weight, list(attributes_of(module).values())))
        for _, _, module in modules_below(top)
    )


def is_single_layer(module: nn.Module) -> bool:
    """Return whether a module is one layer of torch, such as an activation or a pooling, and not a loss."""
    defined_in = module_of_class(type(module))
    return defined_in.startswith("torch.nn.") and defined_in != _LOSSES and not children_of(module)


def _is_weight(thing: object) -> bool:
    return is_tensor(thing) or issubclass(type(thing), torch.ScriptObject)


def named_parameters(top: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, parameter)`` as ``nn.Module.named_parameters`` does, tied parameters once."""
    prefixes: dict[int, str] = {}
    seen: set[int] = set()
    for parent, name, module in modules_below(top):
        prefix = prefixes[id(module)] = "" if parent is None else f"{prefixes[id(parent)]}{name}."
        for own_name, parameter in parameters_of(module):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{prefix}{own_name}", parameter


def updates_of(tensor: Tensor) -> int:
    """Return a number that changes with every in-place update of a tensor; 0 for one of ``inference_mode``."""
    return 0 if torch.is_inference(tensor) else version_of(tensor)


def parameter_groups(optimizer: Optimizer) -> list[list[Any]]:
    """Return the parameters that an optimizer updates, by group."""
    return [list(_items(options.get("params"))) for options in group_options(optimizer)]


def parameter_ids(optimizer: Optimizer) -> set[int]:
    """Return the ids of the parameters that an optimizer updates."""
    return {id(one) for group in parameter_groups(optimizer) for one in group}


def group_options(optimizer: Optimizer) -> list[dict[Any, Any]]:
    """Return the options of each group of an optimizer, such as ``lr`` and ``fused``, and its ``params``."""
    return [dict(entries_of(group)) for group in _items(attributes_of(optimizer).get("param_groups"))]


def state_of(optimizer: Optimizer) -> list[tuple[Any, Any]]:
    """Return ``(parameter, state)`` for every parameter with optimizer state."""
    return entries_of(attributes_of(optimizer).get("state"))


def partition_of(optimizer: Optimizer) -> Any:
    """Return the optimizer inside a ``ZeroRedundancyOptimizer`` of several ranks; None for any other optimizer."""
    if not any(one.__name__ == "ZeroRedundancyOptimizer" for one in type.__getattribute__(type(optimizer), "__mro__")):
        return None
    own = attributes_of(optimizer)
    ranks = own.get("world_size")
    return own.get("optim") if type(ranks) is int and ranks > 1 else None


def is_leaf(tensor: Tensor) -> bool:
    """Return whether a tensor is a leaf; False for a view modified in place under no_grad (autograd raises)."""
    try:
        return _is_leaf(tensor)
    except RuntimeError:
        return False


def tensors_in(thing: object, levels: int = CONTAINER_LEVELS) -> Iterator[Tensor]:
    """Yield the tensors inside nested containers, at most ``levels`` deep."""
    if is_tensor(thing):
        yield thing  # type: ignore[misc]
    elif levels:
        for inner in _items(thing):
            yield from tensors_in(inner, levels - 1)


def _items(thing: object) -> Any:
    """Return the elements of a container: values of a mapping, elements of a sequence, fields of a dataclass."""
    kind = type(thing)
    if issubclass(kind, dict) or _is_user_dict(kind):
        return [value for _, value in entries_of(thing)]
    for built_in in (list, tuple, set, frozenset):
        if issubclass(kind, built_in):
            return list(built_in.__iter__(thing))  # type: ignore[arg-type]
    fields = _class_attribute(kind, "__dataclass_fields__")
    if type(fields) is dict:
        own = attributes_of(thing)
        return [own[name] if name in own else slot_of(thing, name) for name in fields]
    return ()


def _is_user_dict(kind: type) -> bool:
    """Return whether a class extends ``UserDict``. ``issubclass`` would hash the class, as for every abstract class."""
    return any(base is UserDict for base in bases_of(kind))


def _class_attribute(kind: type, name: str) -> Any:
    """Return a class attribute without binding it (descriptors are not called)."""
    for one in bases_of(kind):
        names = _names_of(one)
        if name in names:
            return names[name]
    return None


def slot_of(thing: object, name: str) -> Any:
    """Return the value in an object's slot; None if ``name`` is not a slot or the slot is empty."""
    slot = _class_attribute(type(thing), name)
    if type(slot) is not MemberDescriptorType:
        return None
    try:
        return slot.__get__(thing)
    except AttributeError:
        return None


def local_tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of an operator's results or arguments, including those in lists, tuples and wrappers."""
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        return [value]
    if issubclass(kind, Tensor):
        return wrapped_tensors(value) or [local_part(value)]
    if not issubclass(kind, (tuple, list)):
        return []
    found: list[torch.Tensor] = []
    for inner in value:
        found += local_tensors(inner)
    return found
