"""Measures how a checkout's source is built: sizes, parameter lists, repeated blocks, import time, cycles.

Reads ``src/gpuledger`` of each checkout that you name and imports nothing of it, but for the import time, which a child
process measures. Prints a table and, with ``--out``, writes JSON.

How repeated blocks are counted: only the bodies of functions, without blank lines, comments, docstrings and imports. In
each line a name, a number or a string becomes a placeholder, so that a copy with other variables is found. Two places
where six such lines in a row are equal are one *repeated window*, unless the six are all alike, which is a list;
neighbouring windows of the same two places are one *repeated block*: one of ten lines counts as five windows. Pylint's
checker compares names as they stand, so that it finds 2 blocks where this one finds 48.

Usage: python tools/measure_house.py CHECKOUT [CHECKOUT ...] [--repeats 9] [--blocks] [--out FILE]
"""

from __future__ import annotations

import argparse
import ast
import gc
import graphlib
import json
import keyword
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

WINDOW_LINES = 6
MOST_PARAMETERS = 8
MOST_MODULES = 20
IMPORTS = {
    "gpuledger": "import gpuledger",
    "gpuledger.record": "import gpuledger; gpuledger.record",
    "command line": "import gpuledger.cli.main",
}
BYTECODE = tempfile.TemporaryDirectory(prefix="gpuledger-bytecode-")
"""Where the measured checkouts keep their bytecode: one may be read-only, or the environment may forbid bytecode."""
TOKEN = re.compile(
    r"""
    (?P<literal>
      (?i:[rbf]{0,2}) (?: \"{3} (?:\\.|[^\\])*? \"{3} | '{3} (?:\\.|[^\\])*? '{3}
                        | " (?:\\.|[^"\\\n])* " | ' (?:\\.|[^'\\\n])* ' )
    | \.?\d (?: [eE][+-]\d | [\w.] )*
    )
    | (?P<name> \w+ )
    | \#[^\n]* | \s+ | \\\n
    | (?P<operator> . )
    """,
    re.VERBOSE | re.DOTALL,
)
"""A token of Python's, or what stands between two. The library's own tokenizer takes longer."""


class Block(NamedTuple):
    """Two places, as ``path:line``, whose next ``lines`` lines are alike."""

    lines: int
    first: str
    second: str


class Function(NamedTuple):
    """A function: where it is, how long it is and how many parameters it takes besides ``self`` and ``cls``."""

    place: str
    lines: int
    parameters: int


class Module(NamedTuple):
    """What is measured of one module: its source without its syntax tree, which takes a hundred times the memory."""

    text: str
    functions: tuple[Function, ...]
    compared: tuple[tuple[int, str], ...]
    """The lines that are compared with those of other modules, each with its number."""
    imported: frozenset[str]
    """Names of modules that it may import when it is loaded."""
    defined: tuple[str, ...]
    """Names of its functions, classes and constants."""
    classes: frozenset[str]
    """Names of its classes that are not inside others, without private ones."""


@cache
def read_module(package: Path, path: Path) -> Module:
    """Return what is measured of one module of a package."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    return Module(
        text,
        tuple(list_functions(package, path, nodes)),
        tuple(normalise(text, nodes)),
        frozenset(imported_modules(tree, name_module(package, path))),
        tuple(_defined_names(tree, nodes)),
        frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"),
    )


def read_modules(package: Path) -> dict[Path, Module]:
    """Return what is measured of each module of a package."""
    gc.disable()  # a syntax tree is a million objects, of which none becomes garbage before its module is read
    try:
        return {path: read_module(package, path) for path in sorted(package.rglob("*.py"))}
    finally:
        gc.enable()


def measure_source(package: Path) -> dict[str, Any]:
    """Return every figure that can be read from the source of ``package``, a folder."""
    modules = read_modules(package)
    functions = [function for module in modules.values() for function in module.functions]
    lengths = sorted(function.lines for function in functions)
    folders = count_folders(package, modules)
    blocks, windows = find_repeated_blocks(package, modules)
    longest = max(functions, key=lambda function: function.lines)
    widest = max(functions, key=lambda function: function.parameters)
    texts = [module.text for module in modules.values()]
    class_names = Counter(name for module in modules.values() for name in module.classes)
    return {
        "files": len(texts),
        "lines": sum(map(count_lines, texts)),
        "comment_lines": sum(map(count_comment_lines, texts)),
        "folders": folders,
        "folders_over_20_modules": sorted(name for name, folder in folders.items() if folder["modules"] > MOST_MODULES),
        "files_over_400_lines": sum(count_lines(text) > 400 for text in texts),
        "functions": {
            "count": len(functions),
            "median_lines": statistics.median(lengths),
            "p95_lines": lengths[int(0.95 * len(lengths))],
            "longest_lines": longest.lines,
            "longest": longest.place,
            "most_parameters": widest.parameters,
            "widest": widest.place,
            "too_wide": [function.place for function in functions if function.parameters > MOST_PARAMETERS],
        },
        "class_names": class_names,
        "repeated": {"windows": windows, "blocks": len(blocks), "block_list": [block._asdict() for block in blocks]},
        "import_cycles": find_cycles(package, modules),
    }


def count_lines(text: str) -> int:
    """Return how many lines ``text`` has."""
    return len(text.splitlines())


def count_comment_lines(text: str) -> int:
    """Return how many lines of ``text`` hold a comment and nothing else."""
    if not any(line.lstrip().startswith("#") for line in text.splitlines()):
        return 0
    comments = (token.start() for token in TOKEN.finditer(text) if token[0][0] == "#")
    return sum(not text[text.rfind("\n", 0, start) + 1 : start].strip() for start in comments)


def count_folders(package: Path, read: dict[Path, Module]) -> dict[str, dict[str, int]]:
    """Return per folder its modules (without ``__init__``) and their lines, sub-folders not included."""
    folders: dict[str, dict[str, int]] = defaultdict(lambda: {"modules": 0, "lines": 0})
    for path, module in read.items():
        folder = folders[path.parent.relative_to(package).as_posix()]
        folder["modules"] += path.name != "__init__.py"
        folder["lines"] += count_lines(module.text)
    return dict(folders)


def list_functions(package: Path, path: Path, nodes: Iterable[ast.AST]) -> list[Function]:
    """Return the functions of one module, nested ones and methods included; lines count the ``def`` and docstring."""
    return [
        Function(f"{name_place(package, path)}:{node.name}", _span(node), count_parameters(node.args))
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def count_parameters(arguments: ast.arguments) -> int:
    """Return how many parameters there are, ``*args`` and ``**kwargs`` among them, ``self`` and ``cls`` not."""
    plain = [*arguments.posonlyargs, *arguments.args]
    own = plain[1:] if plain and plain[0].arg in ("self", "cls") else plain
    return len(own) + len(arguments.kwonlyargs) + (arguments.vararg is not None) + (arguments.kwarg is not None)


def name_place(package: Path, path: Path) -> str:
    """Return a module's path below the package."""
    return path.relative_to(package).as_posix()


def _span(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def find_repeated_blocks(package: Path, modules: dict[Path, Module]) -> tuple[list[Block], int]:
    """Return the repeated blocks, longest first, and how many repeated windows they are made of."""
    files = {path: module.compared for path, module in modules.items()}
    places: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path, lines in files.items():
        for start in range(len(lines) - WINDOW_LINES + 1):
            window = tuple(text for _, text in lines[start : start + WINDOW_LINES])
            if len(set(window)) > 1:
                places[window].append((path, start))
    diagonals: dict[tuple[Path, Path, int], list[int]] = defaultdict(list)
    for equal in places.values():
        for number, (path, start) in enumerate(equal):
            for other_path, other in equal[number + 1 :]:
                if path != other_path or other - start >= WINDOW_LINES:
                    diagonals[path, other_path, other - start].append(start)
    blocks = [
        Block(
            count + WINDOW_LINES - 1,
            f"{name_place(package, path)}:{files[path][start][0]}",
            f"{name_place(package, other)}:{files[other][start + shift][0]}",
        )
        for (path, other, shift), starts in diagonals.items()
        for start, count in group_runs(sorted(starts))
    ]
    return sorted(blocks, reverse=True), sum(map(len, diagonals.values()))


def group_runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Return each run of consecutive numbers as its first number and its length."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


def normalise(text: str, nodes: Iterable[ast.AST]) -> list[tuple[int, str]]:
    """Return the compared lines of one module, each with its number; ``nodes`` are all of its syntax tree."""
    kept, left_out = set[int](), set[int]()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            kept.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            if ast.get_docstring(node, clean=False) is not None:
                left_out.update(range(node.body[0].lineno, (node.body[0].end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: dict[int, list[str]] = defaultdict(list)
    line = 1
    for token in TOKEN.finditer(text):
        if token.lastgroup is not None:
            lines[line].append(_placeholder(token[0], token.lastgroup))
        line += token[0].count("\n")
    return [(line, " ".join(words)) for line, words in sorted(lines.items()) if line in kept and line not in left_out]


def _placeholder(token: str, kind: str) -> str:
    if kind == "literal":
        return kind
    return "name" if kind == "name" and not keyword.iskeyword(token) else token


def find_unused(checkout: Path) -> list[str]:
    """Return the functions, classes and constants of ``src`` whose name stands nowhere but in their definitions.

    Looked for in the source, the benchmarks, the tools, the examples and the pages; not in tests, which would keep
    alive what only they call. A name in a text counts: ``getattr`` finds things so.
    """
    kinds = {"src": ("py", "toml", "js"), "bench": ("py",), "tools": ("py",), "examples": ("py",), "docs": ("md",)}
    patterns = [f"{folder}/**/*.{kind}" for folder, names in kinds.items() for kind in names]
    files = [path for pattern in (*patterns, "README.md", "pyproject.toml") for path in checkout.glob(pattern)]
    words = {path: Counter(re.findall(r"\w+", path.read_text(encoding="utf-8"))) for path in files}
    seen: Counter[str] = Counter()
    for counted in words.values():
        seen.update(counted)
    defined: Counter[str] = Counter()
    unused: set[str] = set()
    modules = read_modules(checkout / "src" / "gpuledger")
    for path in modules:
        own = Counter(modules[path].defined)
        defined.update(own)
        # Another module may have a private name of its own that is the same.
        unused |= {name for name, times in own.items() if name.startswith("_") and words[path][name] <= times}
    unused |= {name for name, times in defined.items() if seen[name] <= times}
    return sorted(name for name in unused if not name.startswith("__"))


def _defined_names(tree: ast.Module, nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def find_cycles(package: Path, read: dict[Path, Module]) -> list[list[str]]:
    """Return a list of import cycles at module level, each a list of modules; imports in functions do not count."""
    modules = {name_module(package, path): module for path, module in read.items()}
    graph = {name: set(module.imported & modules.keys()) - {name} for name, module in modules.items()}
    cycles = []
    while True:
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            cycle = list(error.args[1])
            cycles.append(cycle)
            graph[cycle[1]].discard(cycle[0])
        else:
            return cycles


def name_module(package: Path, path: Path) -> str:
    """Return a module's dotted name."""
    return ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")


def imported_modules(tree: ast.Module, name: str) -> set[str]:
    """Return the names that a module may import when it is loaded, with those under ``TYPE_CHECKING`` left out."""
    found: set[str] = set()
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting.extend(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            waiting.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
    # A package imports its own modules for those who import it: that edge is not a cycle.
    return {other for other in found if not other.startswith(f"{name}.")}


def environment_of(checkout: Path) -> dict[str, str]:
    """Return the environment in which ``import gpuledger`` takes the checkout's source, and keeps its bytecode.

    Installing compiles to bytecode. Without it, each process would compile what it imports.
    """
    own = {"PYTHONPATH": str(checkout.resolve() / "src"), "PYTHONPYCACHEPREFIX": BYTECODE.name}
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}, **own}


def time_imports(checkout: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Return per entry point the median and worst seconds that ``-X importtime`` tells.

    One round that is not counted warms the file cache and writes the bytecode.
    """
    environment = environment_of(checkout)
    times = {}
    for name, code in IMPORTS.items():
        seconds = [_time_import(code, environment) for _ in range(repeats + 1)][1:]
        times[name] = {"median_s": round(statistics.median(seconds), 4), "worst_s": round(max(seconds), 4)}
    return times


def _time_import(code: str, environment: dict[str, str]) -> float:
    command = [sys.executable, "-X", "importtime", "-c", code]
    told = subprocess.run(command, env=environment, cwd="/", check=True, capture_output=True, text=True).stderr
    # Modules of depth 0 hold the time of what they import; before the first of ours comes what Python itself loads.
    rows = [re.fullmatch(r"import time:\s+(\d+) \|\s+(\d+) \|( +)(\S+)", line) for line in told.splitlines()]
    top = [(row[4], int(row[2])) for row in rows if row and len(row[3]) == 1]
    first = next(number for number, (name, _) in enumerate(top) if name.startswith("gpuledger"))
    return sum(microseconds for _, microseconds in top[first:]) / 1e6


def measure_checkout(checkout: Path, repeats: int) -> dict[str, Any]:
    """Return all figures of one checkout and the commit that it is at."""
    ask = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() or None
    return {
        "commit": commit,
        **measure_source(checkout.resolve() / "src" / "gpuledger"),
        "unused": find_unused(checkout),
        "import_time": time_imports(checkout, repeats),
    }


def describe(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the printed table."""
    functions, repeated = figures["functions"], figures["repeated"]
    return [
        ("commit", str(figures["commit"])),
        ("files, lines", f"{figures['files']}, {figures['lines']}"),
        ("comment-only lines", str(figures["comment_lines"])),
        ("folders over 20 modules", str(len(figures["folders_over_20_modules"]))),
        ("files over 400 lines", str(figures["files_over_400_lines"])),
        ("functions", str(functions["count"])),
        ("lines: median, 95 %", f"{functions['median_lines']:g}, {functions['p95_lines']}"),
        ("longest function", f"{functions['longest_lines']} {functions['longest']}"),
        ("longest parameter list", f"{functions['most_parameters']} {functions['widest']}"),
        ("over 8 parameters", str(len(functions["too_wide"]))),
        ("repeated: windows, blocks", f"{repeated['windows']}, {repeated['blocks']}"),
        ("unused names, hooks included", str(len(figures["unused"]))),
        ("import cycles", str(len(figures["import_cycles"]))),
        *((f"import {name}", f"{time['median_s'] * 1e3:.0f} ms") for name, time in figures["import_time"].items()),
    ]


def main() -> None:
    """Measure each checkout, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--blocks", action="store_true", help="list the repeated blocks")
    parser.add_argument("--folders", action="store_true", help="list the folders")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    measured = [measure_checkout(checkout, asked.repeats) for checkout in asked.checkouts]
    for rows in zip(*map(describe, measured), strict=True):
        print(f"{rows[0][0]:28}" + "".join(f"{value:44}" for _, value in rows).rstrip())
    for figures in measured if asked.folders else []:
        for name, folder in figures["folders"].items():
            print(f"{figures['commit']} {name:32}{folder['modules']:4} modules {folder['lines']:6} lines")
    for figures in measured if asked.blocks else []:
        for block in figures["repeated"]["block_list"]:
            print(f"{figures['commit']} {block['lines']:3} lines {block['first']} {block['second']}")
    if asked.out:
        asked.out.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
