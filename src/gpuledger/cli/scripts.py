"""The program in a command line: the command to start, and what to type instead of one that is no script."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import sys
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path

from gpuledger.errors import UsageError

_SHELLS = (b"sh", b"bash", b"dash", b"zsh", b"ksh")
_NOTEBOOK = "jupyter nbconvert --to script {}   or   gpuledger.record() in its cells"


def command_of(program: list[str]) -> tuple[tuple[str, ...], str]:
    """Return the command to start, and the default name of its run. After ``--``, any word is a command.

    Raises:
        UsageError: there is no command.
    """
    if program[:1] == ["--"] and len(program) > 1:
        return tuple(program[1:]), _stem(program[1])
    if program and _is_command(program[0]):
        return (_path_of(program[0]), *program[1:]), _stem(program[0])
    if program[:1] == ["-m"] and len(program) > 1:
        return (sys.executable, *program), program[1].rpartition(".")[2] or "run"
    if program and program[0] not in ("--", "-m"):
        return (sys.executable, *program), _stem(program[0])
    raise UsageError("run: no program given", hint="gpuledger run train.py   or   gpuledger run COMMAND")


def _is_command(word: str) -> bool:
    """Return whether a word is the name of a command, such as torchrun, or the path of a shell script that can run.

    A file of that name comes first, also one without its ``.py``.
    """
    if word.startswith("-"):
        return False
    if os.path.exists(word):
        return Path(word).suffix != ".py" and _is_of_a_shell(Path(word)) and os.access(word, os.X_OK)
    return shutil.which(word) is not None and not Path(f"{word}.py").is_file()


def with_installed_script(program: tuple[str, ...]) -> tuple[str, ...]:
    """Return a program's words, with the path of a command that is a Python script of this environment, such as yolo.

    A file of that name comes first, also one without its ``.py``.
    """
    word = program[0] if program else "-"
    found = shutil.which(word) if not word.startswith("-") and os.path.basename(word) == word else None
    if found is None or os.path.exists(word) or Path(f"{word}.py").is_file():
        return program
    interpreter = _interpreter_of(Path(found))
    is_own = "python" in interpreter and os.path.dirname(interpreter) == os.path.dirname(sys.executable)
    return (found, *program[1:]) if is_own else program


def _path_of(word: str) -> str:
    """Return how a command is started: a file of this directory is not looked for in PATH."""
    return word if os.sep in word or not os.path.exists(word) else f".{os.sep}{word}"


def _stem(program: str) -> str:
    """Return the run's name for ``program``: a script, a directory, a command, or ``-`` for standard input."""
    return "stdin" if program == "-" else Path(os.path.abspath(program)).stem or "run"


def refuse_other_programs(program: Sequence[str], script: str, *, runs_commands: bool = False) -> None:
    """Raise if a program is no script that Python could run.

    Args:
        program: The program's words. Without a script, as with ``-m``, nothing is examined.
        script: Beginning of the command line for a script, such as ``gpuledger run``.
        runs_commands: Whether other commands can stand in its place.

    Raises:
        UsageError: there is no such script, or it is a notebook or a shell script. If other words are known, the hint
            has them.
    """
    word = program[0] if program else "-"
    if word.startswith("-") or (runs_commands and _is_command(word)):
        return
    beside = Path(f"{word}.py")
    if not os.path.exists(word):
        hint = _similar(Path(word))
        if beside.is_file():
            hint = f"{script} {shlex.join([str(beside), *program[1:]])}"
        or_command = " or command" if runs_commands and not hint and Path(word).suffix != ".py" else ""
        raise UsageError(f"{word}: no such script{or_command}", hint=hint)
    if Path(word).suffix == ".ipynb":
        raise UsageError(f"{word}: a notebook is not a script", hint=_NOTEBOOK.format(shlex.quote(word)))
    if Path(word).suffix != ".py" and _is_of_a_shell(Path(word)):
        hint = f"{script} bash {shlex.join(program)}" if runs_commands else ""
        raise UsageError(f"{word}: this is a shell script, not a Python script", hint=hint)


def _similar(missing: Path) -> str:
    """Return a question that names a script with a similar name in the same directory; "" without one."""
    near = get_close_matches(missing.name, sorted(one.name for one in missing.parent.glob("*.py")), 1)
    return f"Did you mean {missing.with_name(near[0])}?" if near else ""


def _is_of_a_shell(place: Path) -> bool:
    """Return whether the first line of a file names a shell."""
    words = _first_line(place).split()[:2]
    return any(one.rpartition(b"/")[2] in _SHELLS for one in words)


def _interpreter_of(place: Path) -> str:
    """Return the path of the program that the first line of a file names; "" without one."""
    return os.fsdecode(next(iter(_first_line(place).split()), b""))


def _first_line(place: Path) -> bytes:
    """Return the first line of a file after its ``#!``; empty without one. Nothing is read from a pipe."""
    if not place.is_file():
        return b""
    try:
        with place.open("rb") as file:
            line = file.readline(256)
    except OSError:
        return b""
    return line[2:] if line.startswith(b"#!") else b""


def misplaced_options(options: Collection[str], program: Sequence[str]) -> list[str]:
    """Return options of the command that stand after a script which has no such option, in their order.

    A script can have an option of the same name: in a text, or as a parameter or an attribute that a parser reads. If
    it imports a module beside it, its options are not known.

    Args:
        options: The command's options, such as ``--out``.
        program: The script and its arguments.
    """
    found = [word for one in program[1:] if (word := one.partition("=")[0]) in options and word.startswith("--")]
    script = Path(program[0] if program else "")
    if not found or script.suffix != ".py":
        return []
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    names = {name for node in ast.walk(tree) for name in _names_in(node)}
    modules = {name.partition(".")[0] for node in ast.walk(tree) for name in _modules_in(node)} - {""}
    if any((script.parent / one).is_dir() or (script.parent / f"{one}.py").is_file() for one in modules):
        return []
    return [one for one in dict.fromkeys(found) if one not in names and one[2:].replace("-", "_") not in names]


def _names_in(node: ast.AST) -> list[str]:
    """Return what can be the name of an option: a text, a parameter, or an attribute with a type."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _modules_in(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(one.name for one in node.names)] if node.level else [node.module or ""]
    return [one.name for one in node.names] if isinstance(node, ast.Import) else []
