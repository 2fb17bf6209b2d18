"""What the program keeps, by the names that it has for it: containers, and tensors with an autograd graph.

Walks from the local variables of the calling functions and the globals of their modules, through containers, instances
and closures. Bounded in time, and runs no code of the program.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import CellType, FrameType, FunctionType, MappingProxyType, MethodType, ModuleType, TracebackType
from typing import Any, TypeAlias

import torch

import gpuledger
from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    class_name,
    grad_fn_of,
    is_exactly,
    is_tensor,
    module_of_class,
)
from gpuledger.collect.flight.bounds import CACHE, bound_of, bytes_per_element, results_of
from gpuledger.model.flight_facts import COUNTED_NODES

DEPTH = 5
ENDS = 4
"""Number of elements at either end of a long container that are looked into."""
LONGEST_CHAIN = 20_000
"""Largest number of autograd nodes that are followed along one chain of a graph of more than COUNTED_NODES nodes."""

_OUTSIDE = tuple(
    os.path.dirname(os.path.abspath(place.__file__)) + os.sep for place in (gpuledger, torch) if place.__file__
)
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_SEQUENCES = (list, deque, set, tuple, frozenset)
_MAPPINGS = (dict, OrderedDict)


@dataclass(frozen=True)
class Named:
    """One object that the program keeps. ``size`` is the number of elements, or of autograd nodes for a graph.

    ``content`` is graph (tensors with their autograd graphs), tensor, exception or "", by what the last elements are or
    contain. ``bound`` is the largest number of elements that it keeps, None if there is no limit. ``element_bytes`` are
    those of the tensors in an element, known with a limit only.
    """

    kind: str
    name: str
    where: str
    size: int
    content: str = ""
    bound: int | None = None
    element_bytes: int = 0


@dataclass(frozen=True)
class _Place:
    name: str
    where: str
    value: Any
    depth: int


Key: TypeAlias = tuple[str, str, bool]
"""Name and place of an object, and whether it is a graph: the elements of a list have the list's name."""


def named_objects(until_ns: int) -> tuple[dict[Key, Named], bool]:
    """Return what the program keeps, and whether all of it was seen.

    Ends at a time of ``time.thread_time_ns``. Must be called inside ``without_overrides``.
    """
    found: dict[Key, Named] = {}
    seen: set[int] = set()
    for roots in (_roots_of_frames(), _roots_of_modules()):
        if not _walk(roots, until_ns, found, seen):
            return found, False
    return found, True


def _walk(roots: Iterator[_Place], until_ns: int, found: dict[Key, Named], seen: set[int]) -> bool:
    """Add what roots lead to, the nearest first. Return whether that ended before its time."""
    waiting: deque[_Place] = deque()
    count = 0
    while True:
        count += 1
        if count % 64 == 0 and time.thread_time_ns() > until_ns:
            waiting.clear()
            return False
        place = next(roots, None) or (waiting.popleft() if waiting else None)
        if place is None:
            return True
        value = place.value
        if id(value) in seen or is_exactly(value, *_PLAIN) or _is_ours(value):
            continue
        seen.add(id(value))
        if is_tensor(value):
            nodes = _nodes_below(value)
            if nodes:
                _add(found, Named("graph", place.name, place.where, nodes, "tensor"))
            continue
        _add_container(found, place)
        if place.depth < DEPTH:
            waiting.extend(_inside(place))


def _add_container(found: dict[Key, Named], place: _Place) -> None:
    """Add an object if it is a container, or a function that keeps its results."""
    is_cache = type(place.value) is CACHE
    container = results_of(place.value) if is_cache else place.value
    size = len_of(container) if issubclass(type(container), (*_MAPPINGS, list, deque, set)) else None
    if size is None:
        return
    bound = bound_of(place.value)
    kind = "lru_cache" if is_cache else class_name(type(place.value))
    element_bytes = 0 if bound is None else bytes_per_element(_elements(container))
    _add(found, Named(kind, place.name, place.where, size, _content_of(container), bound, element_bytes))


def _add(found: dict[Key, Named], one: Named) -> None:
    """Add an object, if none with the same key is larger."""
    key = (one.name, one.where, one.kind == "graph")
    if key not in found or found[key].size < one.size:
        found[key] = one


_PLAIN = (int, float, str, bytes, bool, type(None), complex, type, ModuleType, torch.dtype, torch.device)


def _program_frames() -> Iterator[FrameType]:
    """Yield the frames of the program's functions that are running in this thread, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OUTSIDE) and not file.startswith("<frozen"):
            yield frame
        frame = frame.f_back


def _roots_of_frames() -> Iterator[_Place]:
    """Yield the variables of the program's functions that are running in this thread, and their modules' globals."""
    modules: set[int] = set()
    for frame in _program_frames():
        if id(frame.f_globals) not in modules:
            modules.add(id(frame.f_globals))
            yield from _globals_of(frame.f_globals)
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            where = f"local variable of {frame.f_code.co_name}"
            for name, value in locals_of(frame).items():
                yield _Place(name, where, value, 0)


def _roots_of_modules() -> Iterator[_Place]:
    """Yield the globals of the modules that lie beside or below the files of the running functions."""
    files = [frame.f_code.co_filename for frame in _program_frames()]
    folders = tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files if not _is_installed(file))
    for module in list(sys.modules.values()):
        own = attributes_of(module)
        file = own.get("__file__")
        if type(file) is str and file.startswith(folders) and not _is_installed(file):
            yield from _globals_of(own)


def _globals_of(own: dict[str, Any]) -> Iterator[_Place]:
    """Yield the global variables of a module, and the attributes of the classes that it defines."""
    module = own.get("__name__", "?")
    for name, value in list(own.items()):
        if type(name) is not str or name.startswith("__"):
            continue
        yield _Place(name, f"global of {module}", value, 0)
        if type(value) is type:
            of_class: MappingProxyType[str, Any] = type.__getattribute__(value, "__dict__")
            named = of_class.get("__module__")
            if type(named) is str and named == module:
                for attribute, inner in list(of_class.items()):
                    if not attribute.startswith("__"):
                        yield _Place(attribute, f"attribute of {name}", inner, 1)


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to gpuledger, to torch, to another package or to Python."""
    return file.startswith((*_OUTSIDE, "<", _PYTHON)) or f"{os.sep}site-packages{os.sep}" in file


def _is_ours(value: Any) -> bool:
    """Return whether an object is gpuledger's: an instance of one of its classes, or one of its functions."""
    kind = type(value)
    if kind is FunctionType:
        return bool(value.__code__.co_filename.startswith(_OUTSIDE[0]))
    return module_of_class(kind).startswith("gpuledger.")


def _inside(place: _Place) -> Iterator[_Place]:
    value, kind, depth = place.value, type(place.value), place.depth + 1
    if issubclass(kind, dict):
        pairs = list(dict.items(value)) if dict.__len__(value) <= 64 else _ends(list(dict.items(value)))
        for key, inner in pairs:
            name = f"{place.name}[{key!r}]" if is_exactly(key, str, int) else place.name
            yield _Place(name, place.where, inner, depth)
    elif issubclass(kind, _SEQUENCES):
        for inner in _ends(_elements(value)):
            yield _Place(place.name, place.where, inner, depth)
    elif kind is FunctionType:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            if (content := _content_of_cell(cell)) is not None:
                yield _Place(name, f"closure of {value.__name__}", content, depth)
    elif kind is MethodType:
        yield _Place(place.name, place.where, value.__self__, depth)
    elif not issubclass(kind, (type, ModuleType, FrameType, TracebackType)):
        for name, inner in list(attributes_of(value).items()):
            yield _Place(str(name), f"attribute of {class_name(kind)}", inner, depth)


def _elements(value: Any) -> list[Any]:
    for base in _SEQUENCES:
        if issubclass(type(value), base):
            return list(base.__iter__(value))
    return []


def _ends(values: list[Any]) -> list[Any]:
    return values if len(values) <= 2 * ENDS else [*values[:ENDS], *values[-ENDS:]]


def len_of(value: Any) -> int | None:
    """Return the number of elements of a container, whatever its class says; None for another object."""
    for base in (*_SEQUENCES, dict):
        if issubclass(type(value), base):
            return int(base.__len__(value))
    return None


def _content_of(value: Any, depth: int = 3) -> str:
    """Return graph, tensor or exception if the last elements of a container are such, or contain some; "" otherwise."""
    inner = list(dict.values(value)) if issubclass(type(value), dict) else _elements(value)
    for one in inner[-2:]:
        if is_tensor(one):
            return "graph" if _keeps_graph(one) else "tensor"
        if issubclass(type(one), BaseException):
            return "exception"
        if depth and len_of(one) and (content := _content_of(one, depth - 1)):
            return content
        if any(map(is_tensor, _bound_values(one))):
            return "tensor"
        if depth and any(is_tensor(value) for value in list(attributes_of(one).values())[:32]):
            return "tensor"
    return ""


def _bound_values(function: Any) -> list[Any]:
    """Return the values that a function keeps: variables of its closure, defaults, and arguments of a partial."""
    if type(function) is FunctionType:
        cells = map(_content_of_cell, function.__closure__ or ())
        return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if type(function) is functools.partial:
        return [*function.args, *dict.values(function.keywords)]
    return []


def _keeps_graph(tensor: Any) -> bool:
    try:
        return grad_fn_of(tensor) is not None
    except RuntimeError:  # a view that was modified in place
        return False


def _content_of_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _nodes_below(tensor: Any) -> int:
    """Return the number of autograd nodes that a tensor keeps alive: from :data:`COUNTED_NODES` on, at least this many.

    A total that keeps every step's graph is a chain with a graph at each link. Its length grows in a large graph, too.
    """
    try:
        top = grad_fn_of(tensor)
    except RuntimeError:  # a view that was modified in place
        return 0
    waiting: deque[Any] = deque([top])
    seen: set[Any] = set()
    while waiting and len(seen) < COUNTED_NODES:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(_following(node))
    if not waiting:
        return len(seen)
    return len(seen) + max(_chain_beyond(seen, top, end) for end in (0, -1))


def _following(node: Any) -> list[Any]:
    return [following for following, _ in getattr(node, "next_functions", ()) if following is not None]


def _chain_beyond(seen: set[Any], node: Any, end: int) -> int:
    """Return how many nodes the chain of first (0) or last (-1) following nodes has outside a set."""
    count = 0
    for _ in range(LONGEST_CHAIN):
        following = _following(node)
        if not following:
            break
        node = following[end]
        count += node not in seen
    return count


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a frame's variables.

    Before Python 3.13, the frame would keep the dict that it hands out, and with it all values; so that is emptied.
    """
    if sys.gettrace() is not None and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return {}  # a debugger writes the dict back into the frame
    handed_out = frame.f_locals
    copied = dict(handed_out)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(handed_out) is dict:
        handed_out.clear()
    return copied
