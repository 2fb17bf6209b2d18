"""What the program keeps, by the names that it has for it: containers, and tensors with an autograd graph.

Walks from the local variables of the calling functions and the globals of their modules, through containers, instances
and closures. Bounded in time, and runs no code of the program.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import CellType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any

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

DEPTH = 5
ENDS = 4
"""Number of elements at either end of a long container that are looked into."""
MOST_NODES = 2_000
"""Largest number of autograd nodes that are counted below one tensor."""

_OUTSIDE = tuple(
    os.path.dirname(os.path.abspath(place.__file__)) + os.sep for place in (gpuledger, torch) if place.__file__
)
_SEQUENCES = (list, deque, set, tuple, frozenset)
_MAPPINGS = (dict, OrderedDict)


@dataclass(frozen=True)
class Named:
    """One object that the program keeps. ``size`` is the number of elements, or of autograd nodes for a graph.

    ``content`` is tensor, exception or "" by what the last elements are or contain.
    """

    kind: str
    name: str
    where: str
    size: int
    content: str = ""


@dataclass(frozen=True)
class _Place:
    name: str
    where: str
    value: Any
    depth: int


def named_objects(until_ns: int) -> dict[tuple[str, str], Named]:
    """Return what the program keeps, by name and place, until a time of ``time.thread_time_ns``.

    Must be called inside ``without_overrides``.
    """
    found: dict[tuple[str, str], Named] = {}
    seen: set[int] = set()
    waiting = deque(_roots())
    while waiting and (len(seen) % 64 or time.thread_time_ns() < until_ns):
        place = waiting.popleft()
        value, kind = place.value, type(place.value)
        if id(value) in seen or is_exactly(value, *_PLAIN) or _is_ours(value):
            continue
        seen.add(id(value))
        if is_tensor(value):
            nodes = _nodes_below(value)
            if nodes:
                found[place.name, place.where] = Named("graph", place.name, place.where, nodes, "tensor")
            continue
        is_bounded = kind is deque and value.maxlen is not None
        if issubclass(kind, (*_MAPPINGS, list, deque, set)) and not is_bounded and len_of(value) is not None:
            size = len_of(value) or 0
            key = (place.name, place.where)
            if key not in found or found[key].size < size:
                found[key] = Named(class_name(kind), *key, size, _content_of(value))
        if place.depth < DEPTH:
            waiting.extend(_inside(place))
    waiting.clear()
    return found


_PLAIN = (int, float, str, bytes, bool, type(None), complex, type, ModuleType, torch.dtype, torch.device)


def _roots() -> Iterator[_Place]:
    """Yield the variables of the program's functions that are running in this thread, and their modules' globals."""
    frame: FrameType | None = sys._getframe(1)
    modules: set[int] = set()
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OUTSIDE) and not code.co_filename.startswith("<frozen"):
            if id(frame.f_globals) not in modules:
                modules.add(id(frame.f_globals))
                where = f"global of {frame.f_globals.get('__name__', '?')}"
                for name, value in list(frame.f_globals.items()):
                    if not name.startswith("__"):
                        yield _Place(name, where, value, 0)
            if code.co_flags & inspect.CO_OPTIMIZED:
                where = f"local variable of {code.co_name}"
                for name, value in locals_of(frame).items():
                    yield _Place(name, where, value, 0)
        frame = frame.f_back


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
    """Return whether the last elements of a container are tensors or exceptions, or contain some; "" otherwise."""
    inner = list(dict.values(value)) if issubclass(type(value), dict) else _elements(value)
    for one in inner[-2:]:
        if is_tensor(one):
            return "tensor"
        if issubclass(type(one), BaseException):
            return "exception"
        if depth and len_of(one) and (content := _content_of(one, depth - 1)):
            return content
        if type(one) is FunctionType and any(is_tensor(_content_of_cell(cell)) for cell in (*(one.__closure__ or ()),)):
            return "tensor"
        if depth and any(is_tensor(value) for value in list(attributes_of(one).values())[:32]):
            return "tensor"
    return ""


def _content_of_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _nodes_below(tensor: Any) -> int:
    """Return the number of autograd nodes that a tensor keeps alive, at most :data:`MOST_NODES`."""
    try:
        waiting = [grad_fn_of(tensor)]
    except RuntimeError:  # a view that was modified in place
        return 0
    seen: set[Any] = set()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in getattr(node, "next_functions", ())]
    return len(seen)


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
