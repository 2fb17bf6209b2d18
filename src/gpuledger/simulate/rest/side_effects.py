"""Notice that a program is about to write a file or to start another program, before it does.

Files and directories that the program itself made with ``tempfile`` are not guarded: it may fill and remove them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from gpuledger.simulate.rest.ending import OWN_SIGNAL

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

_BOTH = ("os.rename", "os.link")
"""Events with two paths."""
_TEMPORARY = ("tempfile.mkdtemp", "tempfile.mkstemp")

_state: dict[str, Any] = {"refuse": None, "kept": "", "thread": 0, "installed": False, "follows": False}
"""A hook of Python cannot be removed: this decides whether it does anything."""
_temporary: set[str] = set()
"""Absolute paths of what the program made with ``tempfile``."""


def follow_temporary_files() -> None:
    """Begin to note what the program makes with ``tempfile``, until the guard ends."""
    _temporary.clear()
    tempfile.gettempdir()  # it tries to write when it is first asked for
    _state["follows"] = True
    _install()


def guard_against_effects(refuse: Callable[[str], None] | None, kept: str = "") -> None:
    """Call ``refuse`` with what the program is about to do, until None is given.

    Args:
        refuse: Raises an exception, which the program gets in place of the effect. Another thread than this one ends.
        kept: Directory in which files may be written.
    """
    _state.update(refuse=refuse, kept=kept and os.path.abspath(kept), thread=threading.get_ident())
    if refuse is None:
        _state["follows"] = False
    else:
        _install()


def _install() -> None:
    if not _state["installed"]:
        _state["installed"] = True
        sys.addaudithook(_heard)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if event in _TEMPORARY and _state["follows"]:
        _temporary.add(os.path.abspath(os.fsdecode(args[0])))
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
        return "" if event == "signal.pthread_kill" and args[1] == OWN_SIGNAL else _OTHERS[event]
    if event == "open":
        path, mode, flags = args
        writes = any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITING)
        return "" if not writes or _is_directory(path) else _on_file("writes", path)
    if event == "os.mkdir":
        return "" if os.path.isdir(args[0]) else _on_file("writes", args[0], _directory(args))
    if event not in _CHANGES:
        return ""
    directory = _directory(args) if event in ("os.remove", "os.rmdir") else ""
    said = _on_file(_CHANGES[event], args[0], directory)
    return said or (_on_file(_CHANGES[event], args[1]) if event in _BOTH else "")


def _is_directory(path: Any) -> bool:
    """Return whether ``tempfile`` opens a directory to have a file in it without a name."""
    return isinstance(path, (str, bytes, os.PathLike)) and os.path.isdir(path)


def _directory(args: tuple[Any, ...]) -> str:
    """Return the directory that a path is relative to, from the descriptor that follows it; "" if none was given."""
    opened = args[-1]
    return os.path.realpath(f"/proc/self/fd/{opened}") if isinstance(opened, int) and opened >= 0 else ""


def _on_file(verb: str, path: Any, directory: str = "") -> str:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""  # a file that is open already
    name = os.fsdecode(path)
    is_harmless = name in _NOWHERE or "__pycache__" in name
    place = os.path.abspath(os.path.join(directory, name))
    if is_harmless or _is_in(place, _state["kept"]) or is_temporary(place):
        return ""
    return f"{verb} {os.path.basename(name)}"


def is_temporary(place: str) -> bool:
    """Return whether an absolute path is of a file or directory that the program made with ``tempfile``."""
    return any(_is_in(place, made) for made in _temporary)


def _is_in(place: str, kept: str) -> bool:
    return bool(kept) and (place == kept or place.startswith(kept + os.sep))
