"""Tell whether a thread of the program trains by itself, so that its work can be simulated where it is started.

Loops of the main thread end early. A thread that gets nothing from the others can run in it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_TRAINS = "backward"
_WAITING = frozenset({"wait", "wait_for", "acquire"})
_QUEUES = (queue.Queue, queue.SimpleQueue)
_SIGNALS = (threading.Event, threading.Condition, threading.Semaphore, threading.Barrier)
_OTHER_PROCESSES = ("multiprocessing.", "torch.multiprocessing", "asyncio.")
_MOST_FUNCTIONS = 256


def trains_alone(thread: threading.Thread, is_own: Callable[[str], bool]) -> bool:
    """Return whether a thread trains, and does not wait for another one.

    Args:
        thread: It was not started yet.
        is_own: Returns whether a path is that of a file of the program.
    """
    function = getattr(thread, "_target", None) or thread.run
    names, things = _reached(function, is_own)
    things += [*getattr(thread, "_args", ()), *getattr(thread, "_kwargs", {}).values()]
    if _TRAINS not in names:
        return False
    queues = [one for one in things if isinstance(one, _QUEUES)]
    if any(getattr(one, "maxsize", 0) > 0 for one in queues) or (queues and "get" in names):
        return False
    if any(isinstance(one, _SIGNALS) for one in things) and names & _WAITING:
        return False
    return not any(type(one).__module__.startswith(_OTHER_PROCESSES) for one in things)


def _reached(function: Any, is_own: Callable[[str], bool]) -> tuple[set[str], list[Any]]:
    """Return the names that a function and the program's functions it calls use, and the objects they refer to."""
    names: set[str] = set()
    things: list[Any] = []
    waiting: list[tuple[Any, type | None]] = [(function, None)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        called, kind = waiting.pop()
        owner = called.__self__ if isinstance(called, MethodType) else None
        plain = getattr(called, "__func__", called)
        if not isinstance(plain, FunctionType) or id(plain) in seen or not is_own(plain.__code__.co_filename):
            continue
        seen.add(id(plain))
        used = set(_names_in(plain.__code__))
        names |= used
        found = [plain.__globals__[name] for name in used if name in plain.__globals__]
        found += [cell.cell_contents for cell in plain.__closure__ or () if _is_filled(cell)]
        found += vars(owner).values() if hasattr(owner, "__dict__") else ()
        modules = [vars(one) for one in found if isinstance(one, ModuleType)]
        found += [module[name] for module in modules for name in used if name in module]
        things += found
        waiting += [(one, None) for one in found if isinstance(one, (FunctionType, MethodType))]
        waiting += [
            (_bound(one, name), _class_of(one)) for one in (owner, *found, kind) for name in {*used, "__init__"}
        ]
    return names, things


def _class_of(thing: object) -> type:
    """Return a class itself, or that of an object."""
    return thing if isinstance(thing, type) else type(thing)


def _bound(owner: object, name: str) -> object:
    """Return a method that a class of the program has under a name, without running code of it; None without one."""
    plain = next((vars(one)[name] for one in _class_of(owner).__mro__ if name in vars(one)), None)
    if not isinstance(plain, FunctionType):
        return None
    return plain if isinstance(owner, type) else MethodType(plain, owner)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  asking is the test
    except ValueError:
        return False
    return True
