"""Read the Python code that TorchInductor generates, and call back at chosen lines of it.

A generated file has a function ``call`` that allocates buffers and launches kernels, ``partition_N`` functions if the
graph was divided for CUDA graphs, and one function for each body, such as a branch of ``torch.cond``. Only the code
object of a function is replaced, while it is observed. The new one has the same file name and lines.
"""

from __future__ import annotations

import ast
import copy
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol, cast

from gpuledger.collect.adapter.compiler.code_positions import with_short_positions

_OBSERVER = "gpuledger: the observer of generated code stands here"
_PARAMETERS = ("args", "self.args")
"""Parameters of the functions that run a graph or a part of it."""
_ALLOCATES = re.compile(r"^empty_strided|^empty$|^alloc_from_pool$")
_NOT_KERNELS = re.compile(
    r"^(empty_strided\w*|empty|alloc_from_pool|reinterpret_tensor|assert_\w+|get_raw_stream|clear|set_device|item"
    r"|partitions|append|extend|recursively_apply_fns|\w*synchronize|run_intermediate_hooks|_DeviceGuard)$"
)

_CHANGED = "its generated file was changed since it was loaded"

_COMPOUND = (ast.With, ast.If, ast.While)
"""Statements that contain others: a chosen device, ``torch.cond`` and ``while_loop``."""

_TEMPLATE = f"""
try:
    _gpuledger_at = {_OBSERVER!r}.enter(args)
except RecursionError:
    _gpuledger_at = None
try:
    BODY
finally:
    if _gpuledger_at is not None:
        try:
            _gpuledger_at.leave()
        except RecursionError:
            pass
"""

_MARK = """
if _gpuledger_at is not None:
    try:
        _gpuledger_at.{what}({argument})
    except RecursionError:
        pass
"""


@dataclass(frozen=True)
class Statement:
    """One statement of a generated function.

    Attributes:
        line: Its line in the file.
        kernel: Name of the kernel or operator that it calls; "" if it calls none.
        allocates: Variable that gets a new buffer; "" for none.
        renames: ``(old, new)`` if a buffer gets a new name, because its memory is used again; None for none.
        assigns: Variable that it sets to what was computed before, such as an element of a tuple; "" for none.
        names: Variables that it mentions, in order.
        returns: Whether it ends the function.
        enters: Whether it calls a part of the graph, which is a function of the same file.
    """

    line: int
    kernel: str
    allocates: str
    renames: tuple[str, str] | None
    assigns: str
    names: tuple[str, ...]
    returns: bool
    enters: bool = False


class LineCall(Protocol):
    """One call of an observed function. No method may raise."""

    def at(self, mark: int) -> None:
        """Called before the statement with this mark."""

    def made(self, tensor: Any) -> None:
        """Called with each new buffer."""

    def returns(self, tensors: tuple[Any, ...]) -> None:
        """Called with the tensors that the function returns, just before."""

    def leave(self) -> None:
        """Called when the function ends, also by an exception."""


class LineObserver(Protocol):
    """Receives the calls of one observed function."""

    def enter(self, inputs: list[Any]) -> LineCall | None:
        """Return the object that is called back during this call; None for none. Must not keep the inputs."""


class UnknownCodeError(Exception):
    """A generated file does not have the expected form. The message says why."""


@dataclass(frozen=True)
class GeneratedFunction:
    """A function of a generated file with its statements."""

    function: FunctionType
    definition: ast.FunctionDef
    statements: tuple[Statement, ...]

    @property
    def name(self) -> str:
        """Return the function's name."""
        return self.definition.name


def read_functions(module: ModuleType) -> list[GeneratedFunction]:
    """Return the functions of a generated file that allocate and launch.

    Raises:
        UnknownCodeError: the file is missing, was changed, or has none of the known functions.
    """
    try:
        with tokenize.open(str(module.__file__)) as file:
            tree = ast.parse(file.read())
        compiled = compile(tree, str(module.__file__), "exec", dont_inherit=True)
    except OSError as error:
        raise UnknownCodeError(f"its generated file cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UnknownCodeError(f"{_CHANGED}: {error}") from error
    codes = {(code, tuple(code.co_lines())) for code in _codes_in(compiled)}
    found = [
        GeneratedFunction(function, definition, tuple(_statements(definition.body)))
        for definition in _definitions(tree)
        for function in _functions_at(module, definition)
    ]
    if not (found or _has_functions(module)):
        raise UnknownCodeError("it has no function that runs the graph")
    if not found or any((code := one.function.__code__, tuple(code.co_lines())) not in codes for one in found):
        raise UnknownCodeError(_CHANGED)
    return found


def _definitions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for one in inner:
            if isinstance(one, ast.FunctionDef) and ".".join(arg.arg for arg in one.args.args) in _PARAMETERS:
                yield one


def _functions_at(module: ModuleType, definition: ast.FunctionDef) -> list[FunctionType]:
    """Return the function object that a definition created."""
    names = vars(module)
    candidates: list[Any] = [names.get(definition.name)]
    candidates += [vars(one).get(definition.name) for one in list(names.values()) if isinstance(one, type)]
    functions = (getattr(one, "__func__", one) for one in candidates)
    return [
        one
        for one in functions
        if isinstance(one, FunctionType)
        and one.__code__.co_firstlineno == definition.lineno
        and one.__code__.co_filename == module.__file__
    ][:1]


def _has_functions(module: ModuleType) -> bool:
    """Return whether a loaded file has functions that run a graph or a part of it."""
    functions = (getattr(one, "__func__", one) for one in list(vars(module).values()))
    codes = (one.__code__ for one in functions if isinstance(one, FunctionType))
    return any(".".join(code.co_varnames[: code.co_argcount]) in _PARAMETERS for code in codes)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects of a file's functions, and of those in its classes."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes_in(one)


def _statements(body: Sequence[ast.stmt]) -> Iterator[Statement]:
    for one in body:
        if isinstance(one, _COMPOUND):
            for _, inner in _blocks_of(one):
                yield from _statements(inner)
        else:
            yield _statement(one)


def _blocks_of(one: ast.stmt) -> list[tuple[str, list[ast.stmt]]]:
    """Return the names and statements of the blocks of a statement, such as the two of an ``if``."""
    return [(name, inner) for name in ("body", "orelse") if (inner := getattr(one, name, None))]


def _statement(one: ast.stmt) -> Statement:
    value = getattr(one, "value", None)
    called = _called(value) if isinstance(one, (ast.Expr, ast.Assign)) else ""
    target = one.targets[0].id if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) else ""
    names = [node for node in ast.walk(one) if isinstance(node, ast.Name)]
    names.sort(key=lambda node: (node.lineno, node.col_offset))
    kernel = "" if not called or _NOT_KERNELS.match(called.rpartition(".")[2]) else called
    allocates = target if _ALLOCATES.match(called) else ""
    renames = _renamed(value, called, target)
    return Statement(
        line=one.lineno,
        kernel=kernel.removesuffix(".run").removesuffix(".default"),
        allocates=allocates,
        renames=renames,
        assigns="" if kernel or allocates or renames else target,
        names=tuple(dict.fromkeys(node.id for node in names)),
        returns=isinstance(one, ast.Return),
        enters=called.rpartition(".")[2] == "partitions",
    )


def _called(value: Any) -> str:
    """Return the dotted name of the function that an expression calls; "" if it calls none."""
    if not isinstance(value, ast.Call):
        return ""
    pieces: list[str] = []
    at: Any = value.func
    while isinstance(at, ast.Attribute):
        pieces.append(at.attr)
        at = at.value
    if isinstance(at, ast.Subscript):
        name = _called(ast.Call(at.value, [], []))
    else:
        name = at.id if isinstance(at, ast.Name) else ""
    return ".".join([name, *reversed(pieces)]) if name else ""


def _renamed(value: Any, called: str, target: str) -> tuple[str, str] | None:
    old = value if isinstance(value, ast.Name) else None
    if called == "reinterpret_tensor" and isinstance(value.args[0], ast.Name):
        old = value.args[0]
    return (old.id, target) if old is not None and target else None


# -- observing ------------------------------------------------------------------------------------------------------


class LineObservation:
    """Calls an observer at chosen lines of a generated function, from construction until :meth:`remove`.

    Args:
        generated: The function.
        observer: Receives the calls.
        marks: Line -> number given to :meth:`LineCall.at` before the statement of that line.
        sees_buffers: Whether :meth:`LineCall.made` is called with each new buffer.
        sees_results: Whether :meth:`LineCall.returns` is called.

    Raises:
        UnknownCodeError: the function's code cannot be replaced.
    """

    def __init__(
        self,
        generated: GeneratedFunction,
        observer: LineObserver,
        marks: dict[int, int],
        *,
        sees_buffers: bool,
        sees_results: bool = False,
    ) -> None:
        self._function = generated.function
        self._plain = self._function.__code__
        self._code = _with_marks(generated, observer, marks, sees_buffers=sees_buffers, sees_results=sees_results)
        self._function.__code__ = self._code

    def remove(self) -> None:
        """Restore the function's own code, unless other code has replaced it."""
        if self._function.__code__ is self._code:
            self._function.__code__ = self._plain


def _with_marks(
    generated: GeneratedFunction,
    observer: LineObserver,
    marks: dict[int, int],
    *,
    sees_buffers: bool,
    sees_results: bool,
) -> CodeType:
    plain = generated.function.__code__
    allocating = {one.line: one.allocates for one in generated.statements if one.allocates} if sees_buffers else {}
    definition = generated.definition
    template = _at(ast.parse(_TEMPLATE), definition.body[0])
    cast("ast.Try", template.body[1]).body = list(
        _marked(definition.body, marks, allocating, sees_results=sees_results)
    )
    changed = ast.FunctionDef(
        name=definition.name, args=definition.args, body=template.body, decorator_list=[], returns=None
    )
    ast.copy_location(changed, definition)
    try:
        tree = ast.fix_missing_locations(ast.Module([changed], []))
        compiled = compile(tree, plain.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UnknownCodeError(str(error)) from error
    code = next(one for one in compiled.co_consts if isinstance(one, CodeType))
    if code.co_freevars != plain.co_freevars or code.co_argcount != plain.co_argcount:
        raise UnknownCodeError(f"{plain.co_qualname} has another signature")
    constants = tuple(observer if constant == _OBSERVER else constant for constant in code.co_consts)
    return with_short_positions(code.replace(co_consts=constants, co_qualname=plain.co_qualname))


def _marked(
    body: Sequence[ast.stmt], marks: dict[int, int], allocating: dict[int, str], *, sees_results: bool
) -> Iterator[ast.stmt]:
    for one in body:
        if isinstance(one, _COMPOUND):
            inner = copy.copy(one)
            for part, block in _blocks_of(one):
                setattr(inner, part, list(_marked(block, marks, allocating, sees_results=sees_results)))
            yield inner
            continue
        if one.lineno in marks:
            yield from _mark(one, "at", str(marks[one.lineno]))
        returned = _returned_names(one) if sees_results else []
        if returned:
            yield from _mark(one, "returns", f"({', '.join(returned)},)")
        yield one
        name = allocating.get(one.lineno)
        if name and isinstance(one, ast.Assign) and cast("Any", one.targets[0]).id == name:
            yield from _mark(one, "made", name)


def _returned_names(one: ast.stmt) -> list[str]:
    """Return the variables with the storages of what a statement returns; none if they are not known."""
    if not (isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple)):
        return []
    names = [
        element.args[0] if isinstance(element, ast.Call) and _called(element) == "reinterpret_tensor" else element
        for element in one.value.elts
    ]
    found = [name.id for name in names if isinstance(name, ast.Name)]
    return found if len(found) == len(names) else []


def _mark(place: ast.stmt, what: str, argument: str) -> list[ast.stmt]:
    return _at(ast.parse(_MARK.format(what=what, argument=argument)), place).body


def _at(tree: ast.Module, place: ast.AST) -> ast.Module:
    """Return our statements at the line of ``place``. Their empty range of columns marks them as ours."""
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            ast.copy_location(node, place)
            node.end_lineno, node.col_offset, node.end_col_offset = node.lineno, 0, 0  # type: ignore[attr-defined]
    return tree
