"""Notice that a program is about to write a file or to start another program, before it does."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NOWHERE = ("/dev/null", "/dev/stdout", "/dev/stderr")
_CHANGES = {
    "os.remove": "removes", "os.rename": "renames", "os.rmdir": "removes", "os.truncate": "writes",
    "os.link": "links", "os.symlink": "links", "os.chmod": "changes", "os.chown": "changes", "os.utime": "changes",
    "sqlite3.connect": "writes",
}  # fmt: skip
"""Event -> what the program does with the path that is its first argument."""
_OTHERS = {
    "subprocess.Popen": "starts another program", "os.system": "starts another program",
    "os.exec": "starts another program", "os.posix_spawn": "starts another program",
    "socket.connect": "connects to another machine", "socket.sendto": "connects to another machine",
    "os.kill": "sends a signal", "os.killpg": "sends a signal", "signal.pthread_kill": "sends a signal",
}  # fmt: skip

_state: dict[str, Any] = {"refuse": None, "kept": "", "thread": 0, "installed": False}
"""A hook of Python cannot be removed: this decides whether it does anything."""


def guard_against_effects(refuse: Callable[[str], None] | None, kept: str = "") -> None:
    """Call ``refuse`` with what the program is about to do, until None is given.

    Args:
        refuse: Raises an exception, which the program gets in place of the effect. Another thread than this one ends.
        kept: Directory in which files may be written.
    """
    _state.update(refuse=refuse, kept=kept, thread=threading.get_ident())
    if refuse is not None and not _state["installed"]:
        _state["installed"] = True
        sys.addaudithook(_heard)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    refuse = _state["refuse"]
    what = "" if refuse is None else _effect(event, args)
    if not what:
        return
    try:
        refuse(what)
    except BaseException:
        if threading.get_ident() == _state["thread"]:
            raise
        raise SystemExit from None  # ends a thread without a traceback


def _effect(event: str, args: tuple[Any, ...]) -> str:
    """Return what an event of Python does outside this process; "" if that is nothing."""
    if event in _OTHERS:
        return _OTHERS[event]
    if event == "open":
        path, mode, flags = args
        writes = any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITING)
        return _on_file("writes", path) if writes else ""
    if event == "os.mkdir":
        return "" if os.path.isdir(args[0]) else _on_file("writes", args[0])
    return _on_file(_CHANGES[event], args[0]) if event in _CHANGES else ""


def _on_file(verb: str, path: Any) -> str:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""  # a file that is open already
    name = os.fsdecode(path)
    is_harmless = name in _NOWHERE or "__pycache__" in name
    if is_harmless or (_state["kept"] and os.path.abspath(name).startswith(_state["kept"])):
        return ""
    return f"{verb} {os.path.basename(name)}"
