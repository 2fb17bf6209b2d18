"""The names that running functions have for objects: a variable, or what attributes and elements lead to from one."""

from __future__ import annotations

import dis
import functools
import inspect
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import islice
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from gpuledger.collect.adapter.frames import (
    frames_of_other_threads,
    frames_of_waiting_tasks,
    locals_of,
    program_frames,
)
from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    class_name,
    is_exactly,
    is_tensor,
    items_of,
    module_of_class,
)

DEPTH = 4
"""Largest number of attributes and elements in a name."""
MOST = 4_000
"""Largest number of objects that are looked at, which takes 3 ms."""
WIDTH = 512
"""Largest number of elements of one container that are looked at."""

_PLAIN = (int, float, bool, str, bytes, type(None), complex, type, ModuleType, torch.dtype, torch.device, torch.Size)
_PLAIN_IDS = frozenset(map(id, _PLAIN))
"""Ids of the classes whose objects lead to nothing. They are passed over inside containers, where most are numbers."""
_CLOSED = (type, ModuleType, FunctionType, MethodType, FrameType, TracebackType, functools.partial, Optimizer)
"""Classes of objects that are not looked into. An optimizer has numbers for its tensors, and no names."""

_FOR_ITER, _PASSES_ON = dis.opmap["FOR_ITER"], dis.opmap["CALL_FUNCTION_EX"]
_second: WeakKeyDictionary[CodeType, frozenset[str]] = WeakKeyDictionary()
"""What :func:`second_names` has found: each search comes by the same functions."""

_NUMBER = re.compile(r"\[-?\d+\]")

_Place = tuple[str, bool, Any]
"""Name, whether it ends in a name (and not in a number), and the object."""


def names_of(wanted: Sequence[object]) -> dict[int, str]:
    """Return ``id`` -> name for those of the objects that the running functions of the program have a name for.

    The shortest one from the innermost function outwards, as ``weight``, ``layers[0].weight`` or ``params['weight']``.
    One that ends in a number is used only if there is no other, and one from a variable that is another name for
    something else (:func:`second_names`) only after that. Runs no code of the program, and keeps nothing.
    """
    missing = {id(one) for one in wanted}
    found = _search(_variables(is_second=False), missing)
    missing.difference_update(found)
    return found | _search(_variables(is_second=True), missing) if missing else found


def outer_names_of(wanted: Sequence[object]) -> list[tuple[object, str]]:
    """Return names as :func:`names_of` does, but with those of outer functions before those of inner ones.

    A function that is called with one of several objects has the same name for all of them. If a name is that of an
    element, as ``models[0]``, the other elements of the same class are returned, too. If one has no other name, all
    in the same container are named as elements, although a function has a variable for one of them. An object that
    the functions of this thread have no name for has the one that those of another thread have.
    """
    ids, classes = {id(one) for one in wanted}, {id(type(one)) for one in wanted}
    others: dict[int, tuple[object, str]] = {}
    numbered: dict[int, str] = {}
    names = _search(_variables(is_second=False, of_models=ids), ids, classes, others, numbered)
    if len(names) < len(ids):
        names |= _search(_variables_of_other_threads(), ids - names.keys())
    alone = {_container_of(name) for key, name in numbered.items() if names[key] == name}
    names |= {key: name for key, name in numbered.items() if _container_of(name) in alone}
    containers = {_container_of(name) for name in names.values() if name.endswith("]")}
    found = [(one, names[id(one)]) for one in wanted if id(one) in names]
    return found + [(one, name) for one, name in others.values() if _container_of(name) in containers]


def _container_of(name: str) -> str:
    return name.rpartition("[")[0]


def held_tensors() -> list[tuple[str, Any]]:
    """Return name and tensor of those that variables of the running functions lead to, each with its nearest name.

    All elements of a list have one name, as ``losses[*]``, and so have those of a dict with other keys than text. Runs
    no code of the program.
    """
    found: dict[int, tuple[str, Any]] = {}
    for is_second in (False, True):
        for name, _, value in _reached(_variables(is_second=is_second), frozenset(), lambda: False, any_key=True):
            if is_tensor(value):
                found.setdefault(id(value), (_NUMBER.sub("[*]", name), value))
    return list(found.values())


def _search(
    roots: Iterator[_Place],
    wanted: set[int],
    classes: Set[int] = frozenset(),
    others: dict[int, tuple[object, str]] | None = None,
    numbered: dict[int, str] | None = None,
) -> dict[int, str]:
    """Return the names of what roots lead to, by ``id``. The nearest is found first.

    Args:
        roots: Where to begin.
        wanted: Ids of the objects.
        classes: Ids of the classes of the elements of containers that are added to ``others``.
        others: Gets such elements and their names, by ``id``. A search with it does not end inside a container.
        numbered: Gets the names that end in a number, by ``id``, also of objects with other names.
    """
    named: dict[int, str] = {}
    numbered = {} if numbered is None else numbered
    for name, is_named, value in _reached(roots, wanted, is_enough=lambda: len(named) == len(wanted)):
        key = id(value)
        if key in wanted:
            (named if is_named else numbered).setdefault(key, name)
            if others is None and len(named) == len(wanted):
                return named
        elif others is not None and name.endswith("]") and id(type(value)) in classes:
            others.setdefault(key, (value, name))
    return numbered | named


def _reached(
    roots: Iterator[_Place], closed: Set[int], is_enough: Callable[[], bool], *, any_key: bool = False
) -> Iterator[_Place]:
    """Yield roots and what they lead to, the nearest first.

    Args:
        roots: Where to begin.
        closed: Ids of objects that are not looked into.
        is_enough: Returns whether nothing is needed that is further away.
        any_key: Whether elements of a dict are included that have neither text nor numbers as keys.
    """
    seen: set[int] = set()
    level = roots
    for depth in range(DEPTH + 1):
        following: list[_Place] = []
        for place in level:
            yield place
            key, value = id(place[2]), place[2]
            if not (id(type(value)) in _PLAIN_IDS or key in closed or key in seen or is_tensor(value)):
                seen.add(key)
                if len(seen) > MOST:
                    return
                if depth < DEPTH:
                    following.append(place)
        if is_enough():
            return
        level = (inner for name, _, value in following for inner in _inside(name, value, any_key=any_key))


def _variables(*, is_second: bool, of_models: Set[int] = frozenset()) -> Iterator[_Place]:
    """Yield the variables of the program's running functions, then the globals of their modules.

    Args:
        is_second: Whether those are yielded that :func:`second_names` returns, or all others.
        of_models: Ids of objects that functions are called with. Variables of outer functions then come first, and
            these objects have no name in their own methods.
    """
    modules: dict[int, dict[str, Any]] = {}
    frames = [*program_frames()]
    if of_models:
        frames.reverse()
        modules = _globals_of_thread(frames)
        inside = [frame for frame in frames if frame.f_code.co_flags & inspect.CO_OPTIMIZED]
        frames = [*(frame for frame in frames if frame not in inside), *_around(of_models), *inside]
        yield from _global_variables(modules.values())
        modules = {key: {} for key in modules}
    names_of_self = _names_of_self(frames)
    for frame in frames:
        second = second_names(frame.f_code)
        for name, value in locals_of(frame).items():
            is_own = name == "self" and id(value) in of_models
            if (name in second) == is_second and not (is_own or name.startswith("__")):
                yield names_of_self[id(value)] if name == "self" else name, True, value
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        modules.setdefault(id(frame.f_globals), frame.f_globals)
        if not is_function:
            modules[id(frame.f_globals)] = {}
    yield from _global_variables(() if is_second else modules.values())


def _variables_of_other_threads() -> Iterator[_Place]:
    for frame in frames_of_other_threads():
        if _library_of(frame) not in sys.stdlib_module_names:
            for name, value in locals_of(frame).items():
                if name != "self" and not name.startswith("__"):
                    yield name, True, value


def _around(wanted: Set[int]) -> list[FrameType]:
    """Return the frames of coroutines that wait, those with variables for the most of the wanted objects first.

    A coroutine that starts tasks has them all, and each task that it waits for has one.
    """
    return sorted(frames_of_waiting_tasks(), key=lambda frame: -len(wanted & set(map(id, locals_of(frame).values()))))


def _names_of_self(frames: Sequence[FrameType]) -> dict[int, str]:
    """Return ``id`` -> name of the objects whose methods are running: a variable around them, or else their class."""
    variables = [(second_names(frame.f_code), locals_of(frame)) for frame in frames]
    names = {id(one["self"]): class_name(type(one["self"])) for _, one in variables if "self" in one}
    if not names:
        return names
    around = {id(frame.f_globals): frame.f_globals for frame in frames}
    variables += [(frozenset(), one) for one in around.values()]
    for second, one in reversed(variables):
        for name, value in items_of(one):
            if id(value) in names and type(name) is str and not (name in second or name in ("self", "cls")):
                names[id(value)] = name
    return names


def _global_variables(modules: Iterable[dict[str, Any]]) -> Iterator[_Place]:
    for variables in modules:
        for name, value in items_of(variables):
            if type(name) is str and not name.startswith("__"):
                yield name, True, value


def _globals_of_thread(frames: Sequence[FrameType]) -> dict[int, dict[str, Any]]:
    """Return the globals, by ``id``, of the outermost function of a thread that began in one; empty in the main thread.

    There, they are around the function's own variables, as those of a running module are around its functions.
    """
    own = (frame for frame in frames if _library_of(frame) not in sys.stdlib_module_names)
    first = next(own, None)
    if first is None or not first.f_code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    return {id(first.f_globals): first.f_globals}


def _library_of(frame: FrameType) -> str:
    name = dict.get(frame.f_globals, "__name__")
    return name.partition(".")[0] if type(name) is str else ""


def second_names(code: CodeType) -> frozenset[str]:
    """Return the variables of a function that are other names for what has one already.

    Those to which its ``for`` loops assign, and its ``*args`` and ``**kwargs`` if it passes such arguments on, as what
    a decorator returns does.
    """
    found = _second.get(code)
    if found is None:
        steps = code.co_code[::2]
        passed_on = _variadic(code) if _PASSES_ON in steps else set[str]()
        found = _second[code] = frozenset(passed_on | (_assigned_by_loops(code) if _FOR_ITER in steps else set()))
    return found


def _variadic(code: CodeType) -> set[str]:
    """Return the names of a function's ``*args`` and ``**kwargs``."""
    first = code.co_argcount + code.co_kwonlyargcount
    count = sum(bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    return set(code.co_varnames[first : first + count])


def _assigned_by_loops(code: CodeType) -> set[str]:
    found: set[str] = set()
    is_target = False
    for step in dis.get_instructions(code):
        if step.opname == "FOR_ITER":
            is_target = True
        elif is_target and step.opname.startswith("STORE_"):
            is_target = "LOAD" not in step.opname  # one that also loads is the last: STORE_FAST_LOAD_FAST
            names = [step.argval] if isinstance(step.argval, str) else list(step.argval)
            found.update(names if is_target else names[:1])
        elif not step.opname.startswith("UNPACK_"):
            is_target = False
    return found


def _leading(elements: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the first keys and elements of a container, without elements that lead to nothing."""
    return [(key, inner) for key, inner in list(islice(elements, WIDTH)) if id(type(inner)) not in _PLAIN_IDS]


def _inside(name: str, value: Any, *, any_key: bool = False) -> Iterator[_Place]:
    """Yield the elements or the attributes of an object."""
    kind = type(value)
    if issubclass(kind, _CLOSED) or module_of_class(kind).startswith("gpuledger."):
        return
    if issubclass(kind, dict):
        for key, inner in _leading(items_of(value, WIDTH)):
            if is_exactly(key, str, int):
                yield f"{name}[{key!r}]", type(key) is str, inner
            elif any_key:
                yield f"{name}[*]", False, inner
    elif issubclass(kind, (list, tuple, deque)):
        base = next(one for one in (list, tuple, deque) if issubclass(kind, one))
        for number, inner in _leading(enumerate(base.__iter__(value))):
            yield f"{name}[{number}]", False, inner
    elif issubclass(kind, nn.Module):
        yield from _of_module(name, value)
    else:
        for key, inner in _leading(items_of(attributes_of(value), WIDTH)):
            if type(key) is str:
                yield f"{name}.{key}", True, inner


def _of_module(name: str, module: nn.Module) -> Iterator[_Place]:
    """Yield what a module holds, with the paths that PyTorch has for it."""
    for key, inner in items_of(attributes_of(module)):
        if issubclass(type(inner), dict) and key in ("_modules", "_parameters", "_buffers"):
            for own, held in items_of(inner, WIDTH):
                yield f"{name}.{own}", True, held
        elif not key.startswith("_") and id(type(inner)) not in _PLAIN_IDS:
            yield f"{name}.{key}", True, inner
