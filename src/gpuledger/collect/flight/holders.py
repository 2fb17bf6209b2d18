"""What the program keeps, by the names that it has for it: containers, and tensors with an autograd graph.

Walks from the local variables of the calling functions and the globals of their modules, through containers, instances
and closures. Bounded in time, and runs no code of the program.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import weakref
from _thread import _local as local
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from types import FrameType, FunctionType, MappingProxyType, MethodType, ModuleType, TracebackType
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from gpuledger.collect.adapter.frames import OUTSIDE, frames_of_other_threads, locals_of, program_frames
from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    class_name,
    is_exactly,
    is_tensor,
    items_of,
    module_of_class,
)
from gpuledger.collect.flight.bounds import CACHE, bound_of, parameter_count, results_of
from gpuledger.collect.flight.chains import SHORTEST, chain_below, named_values
from gpuledger.collect.flight.element_sizes import data_of, last_elements
from gpuledger.collect.flight.graphs import keeps_graph, nodes_below
from gpuledger.collect.flight.time_limit import OutOfTimeError, TimeLimit
from gpuledger.model.flight_facts import DATA

LOCAL_OF = "local variable of "
DEPTH = 5
WHOLE = 64
"""Longest dict of which all values are looked into."""
LARGE_BYTES = 64 << 10
"""Smallest size from which on such an object is looked at by itself."""
ENDS = 4
"""Number of elements at either end of a long container that are looked into."""

_CHECK_EVERY = 8
"""Number of objects between two looks at the clock."""

_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_SEQUENCES = (list, deque, set, tuple, frozenset)
_MAPPINGS = (dict, OrderedDict)
_LOCAL: Any = local.__getattribute__
"""Reads the attributes that a thread-local object has in this thread."""


@dataclass(frozen=True)
class Named:
    """One object that the program keeps. ``size`` is the number of elements, nodes (graph) or bytes (data).

    ``path`` is how the program reaches it from a variable. ``content`` is graph (tensors with their autograd graphs),
    tensor, exception or "", by what the last elements are or contain; data for one tensor, array, bytes or text, of
    which ``prefix`` are the first bytes. ``bound`` is the largest number of elements that it keeps, None if there is no
    limit. ``value`` is the object, as long as a census lasts.
    """

    kind: str
    name: str
    where: str
    path: str
    size: int
    content: str = ""
    bound: int | None = None
    prefix: bytes | None = b""
    value: Any = None


@dataclass(frozen=True)
class _Place:
    name: str
    where: str
    value: Any
    depth: int
    path: str
    bound: int | None = None


Key: TypeAlias = tuple[str, str, str]
"""Name and place of an object, and whether it is a graph or data: the elements of a list have the list's name."""


def named_objects(limit: TimeLimit) -> tuple[dict[Key, Named], bool]:
    """Return what the program keeps, and whether all of it was seen in time.

    Must be called inside ``without_overrides``.
    """
    found: dict[Key, Named] = {}
    seen: set[int] = set()
    selves = _Selves()
    for roots in (
        _roots_of_frames(program_frames, selves),
        _roots_of_modules(),
        _roots_of_frames(frames_of_other_threads, selves),
    ):
        try:
            _walk(roots, limit, found, seen, selves)
        except OutOfTimeError:
            return selves.name_in(found), False
    return selves.name_in(found), True


class _Selves:
    """Objects that were found as ``self`` of a method, and how else the program reaches them.

    Until all is walked through, such an object has a mark instead of a name. One that nothing else leads to has the
    name of its class. A path through another ``self`` counts if that is the one of a calling method.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._paths: list[str] = []
        self._has_name: list[bool] = []

    def mark(self, value: object) -> str:
        """Return the mark of an object, which begins its path."""
        number = self._numbers.setdefault(id(value), len(self._paths))
        if number == len(self._paths):
            self._paths.append(class_name(type(value)))
            self._has_name.append(False)
        return f"\0{number}\0"

    def meet(self, value: object, path: str) -> None:
        """Store another path of an object, if it has none that begins with a variable."""
        number = self._numbers.get(id(value))
        if number is None or self._has_name[number]:
            return
        through = int(path.split("\0")[1]) if path.startswith("\0") else None
        if through is None or through > number:
            self._paths[number], self._has_name[number] = path, through is None

    def name_in(self, found: dict[Key, Named]) -> dict[Key, Named]:
        """Return what was found with paths that have no marks."""
        return {
            key: replace(one, path=self._plain(one.path)) if "\0" in one.path else one for key, one in found.items()
        }

    def _plain(self, path: str) -> str:
        while path.startswith("\0"):
            _, number, rest = path.split("\0", 2)
            path = f"{self._paths[int(number)]}{rest}"
        return path


def running_functions() -> set[str]:
    """Return the names of the program's functions that are running, in all threads."""
    return {frame.f_code.co_name for frames in (program_frames, frames_of_other_threads) for frame in frames()}


def _walk(roots: Iterator[_Place], limit: TimeLimit, found: dict[Key, Named], seen: set[int], selves: _Selves) -> None:
    """Add what roots lead to, the nearest first."""
    waiting: deque[_Place] = deque()
    count = 0
    while True:
        count += 1
        if count % _CHECK_EVERY == 0:
            limit.check()
        place = next(roots, None) or (waiting.popleft() if waiting else None)
        if place is None:
            return
        value = place.value
        if id(value) in seen or is_exactly(value, *_PLAIN) or _is_ours(value):
            selves.meet(value, place.path)
            continue
        seen.add(id(value))
        if _add_data(found, place, limit):
            continue
        _add_container(found, place)
        _add_chain(found, place, limit)
        if place.depth < DEPTH:
            waiting.extend(_inside(place))


def _add_data(found: dict[Key, Named], place: _Place, limit: TimeLimit) -> bool:
    """Add a tensor, an array, bytes or text, if it is large or keeps a graph. Return whether the object is such."""
    value = place.value
    data = data_of(value)
    if data is not None and data.size_bytes >= LARGE_BYTES:
        kind = class_name(type(value))
        _add(found, Named(kind, place.name, place.where, place.path, data.size_bytes, DATA, prefix=data.prefix))
    nodes = nodes_below(value, limit) if is_tensor(value) else 0
    if nodes:
        _add(found, Named("graph", place.name, place.where, place.path, nodes, "tensor"))
    return data is not None or is_tensor(value)


def _add_container(found: dict[Key, Named], place: _Place) -> None:
    """Add an object if it is a container, or a function that keeps its results."""
    is_cache = type(place.value) is CACHE
    container = results_of(place.value) if is_cache else place.value
    size = len_of(container) if issubclass(type(container), (*_MAPPINGS, list, deque, set)) else None
    if size is None:
        return
    kind = "lru_cache" if is_cache else class_name(type(place.value))
    named = kind, place.name, place.where, place.path, size
    bound = bound_of(place.value) if place.bound is None else place.bound
    _add(found, Named(*named, _content_of(container), bound, value=container))


def _add_chain(found: dict[Key, Named], place: _Place, limit: TimeLimit) -> None:
    """Add an object if it is the first of a chain."""
    if issubclass(type(place.value), (*_MAPPINGS, *_SEQUENCES, nn.Module)):
        return
    size, last = chain_below(place.value, limit)
    if size >= SHORTEST:
        kind = f"chain of {class_name(type(place.value))}"
        named = kind, place.name, place.where, place.path, size
        _add(found, Named(*named, _content_of([last]), value=[last]))


def _add(found: dict[Key, Named], one: Named) -> None:
    """Add an object, if none with the same key is larger."""
    key = (one.name, one.where, one.kind if one.kind == "graph" else one.content if one.content == DATA else "")
    if key not in found or found[key].size < one.size:
        found[key] = one


_PLAIN = (int, float, bool, type(None), complex, type, ModuleType, torch.dtype, torch.device)


def _roots_of_frames(frames: Callable[[], Iterator[FrameType]], selves: _Selves) -> Iterator[_Place]:
    """Yield the variables of the program's functions that are running in some threads, and their modules' globals."""
    modules: set[int] = set()
    for frame in frames():
        if id(frame.f_globals) not in modules:
            modules.add(id(frame.f_globals))
            yield from _globals_of(frame.f_globals)
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            where = f"{LOCAL_OF}{frame.f_code.co_name}"
            for name, value in locals_of(frame).items():
                yield _Place(name, where, value, 0, selves.mark(value) if name == "self" else name)


def _roots_of_modules() -> Iterator[_Place]:
    """Yield the globals of the modules that lie beside or below the files of the running functions, and finalizers."""
    files = [frame.f_code.co_filename for frame in program_frames()]
    folders = tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files if not _is_installed(file))
    for module in list(sys.modules.values()):
        own = attributes_of(module)
        file = own.get("__file__")
        if type(file) is str and file.startswith(folders) and not _is_installed(file):
            yield from _globals_of(own)
    finalizers = vars(weakref.finalize).get("_registry")
    yield _Place("_registry", "attribute of finalize", finalizers, 1, "weakref.finalize._registry")


def _globals_of(own: dict[str, Any]) -> Iterator[_Place]:
    """Yield the global variables of a module, and the attributes of the classes that it defines."""
    module = own.get("__name__", "?")
    for name, value in items_of(own):
        if type(name) is not str or name.startswith("__"):
            continue
        yield _Place(name, f"global of {module}", value, 0, name)
        if type(value) is type:
            of_class: MappingProxyType[str, Any] = type.__getattribute__(value, "__dict__")
            named = of_class.get("__module__")
            if type(named) is str and named == module:
                for attribute, inner in list(of_class.copy().items()):
                    if not attribute.startswith("__"):
                        yield _Place(attribute, f"attribute of {name}", inner, 1, f"{name}.{attribute}")


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to gpuledger, to torch, to another package or to Python."""
    return file.startswith((*OUTSIDE, "<", _PYTHON)) or f"{os.sep}site-packages{os.sep}" in file


def _is_ours(value: Any) -> bool:
    """Return whether an object is gpuledger's: an instance of one of its classes, or one of its functions."""
    kind = type(value)
    if kind is FunctionType:
        return bool(value.__code__.co_filename.startswith(OUTSIDE[0]))
    return module_of_class(kind).startswith("gpuledger.")


def _inside(place: _Place) -> Iterator[_Place]:
    value, kind, depth = place.value, type(place.value), place.depth + 1
    if issubclass(kind, dict):
        pairs = dict.items(value)
        ends = [*items_of(value, ENDS), *islice(reversed(pairs), ENDS)] if len(pairs) > WHOLE else items_of(value)
        for key, inner in ends:
            named = f"[{key!r}]" if is_exactly(key, str, int) else ""
            yield _Place(place.name + named, place.where, inner, depth, place.path + (named or "[…]"))
    elif issubclass(kind, _SEQUENCES):
        for inner in _ends(value):
            yield _Place(place.name, place.where, inner, depth, f"{place.path}[…]")
    elif kind is FunctionType or kind is functools.partial:  # ``in`` asks the class whether it is equal
        for name, where, inner in named_values(value):
            yield _Place(name or place.name, where if name else place.where, inner, depth, name or place.path)
    elif kind is MethodType:
        yield _Place(place.name, place.where, value.__self__, depth, place.path)
    elif not issubclass(kind, (type, ModuleType, FrameType, TracebackType)):
        yield from _attributes(place, depth)


def _attributes(place: _Place, depth: int) -> Iterator[_Place]:
    """Yield the attributes of an object. A module's submodules have the paths that they have in PyTorch."""
    value, kind = place.value, type(place.value)
    where = f"attribute of {class_name(kind)}"
    for name, inner in items_of(_LOCAL(value, "__dict__") if kind is local else attributes_of(value)):
        if name == "_modules" and issubclass(kind, nn.Module) and issubclass(type(inner), dict):
            for child, module in items_of(inner):
                yield _Place(str(child), where, module, depth, f"{place.path}.{child}")
            yield _Place(str(name), where, inner, depth, f"{place.path}.{name}")
        else:
            bound = parameter_count(value) if name == "state" and issubclass(kind, Optimizer) else None
            yield _Place(str(name), where, inner, depth, f"{place.path}.{name}", bound)


def _ends(values: Any) -> list[Any]:
    """Return the first and the last elements of a container, all if these are few."""
    size = len_of(values)
    if size is None or size <= 2 * ENDS:
        return last_elements(values, 2 * ENDS)
    kind = next((base for base in _SEQUENCES if issubclass(type(values), base)), type(values))
    return [*islice(kind.__iter__(values), ENDS), *last_elements(values, ENDS)]


def len_of(value: Any) -> int | None:
    """Return the number of elements of a container, whatever its class says; None for another object."""
    for base in (*_SEQUENCES, dict):
        if issubclass(type(value), base):
            return int(base.__len__(value))
    return None


def _content_of(value: Any, depth: int = 3) -> str:
    """Return graph, tensor or exception if the last elements of a container are such, or contain some; "" otherwise."""
    for one in last_elements(value, 2):
        if is_tensor(one):
            return "graph" if keeps_graph(one) else "tensor"
        if issubclass(type(one), BaseException):
            return "exception"
        if depth and len_of(one) and (content := _content_of(one, depth - 1)):
            return content
        if any(is_tensor(value) for *_, value in named_values(one)):
            return "tensor"
        if depth and any(is_tensor(value) for value in list(attributes_of(one).values())[:32]):
            return "tensor"
    return ""
