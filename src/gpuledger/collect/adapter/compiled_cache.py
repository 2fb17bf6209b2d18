"""Keep what was read of a compiled graph, for later processes that load its code from Inductor's cache.

Inductor's cache keeps the generated code without the nodes that it was made from. So a small file with their places is
written at the first compilation: ``$XDG_CACHE_HOME/gpuledger/compiled/NAME.json``, where NAME is that of the generated
file, which is a hash of its content. It is used only if every module in it exists in the program, with the same class.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gpuledger.collect.adapter.inductor import CompiledGraph, Kernel, Place
from gpuledger.files.reading import read_json_file
from gpuledger.files.shapes import Fields, ListOf, MappingOf, check_shape
from gpuledger.files.writing import write_whole

VERSION = 1
FILES = 1_000
"""Number of files above which the oldest half is deleted."""

_SHAPE = Fields(
    {
        "version": int,
        "torch": str,
        "content": str,
        "places": ListOf(Fields({"path": str, "class_name": str, "frames": ListOf(ListOf(object, 3, 3))})),
        "buffers": MappingOf(int),
        "kernels": ListOf(
            Fields(
                {
                    **dict.fromkeys(("outputs", "changed", "nodes"), ListOf(str)),
                    "parts": ListOf(ListOf(int, 2, 2)),
                },
                ("outputs", "changed", "nodes", "parts"),
            )
        ),
    },
    ("version", "torch", "content", "places", "buffers", "kernels"),
)

Modules = Mapping[str, tuple[int, str]]
"""Path of a module -> its key and class name; see :class:`gpuledger.collect.adapter.inductor.Place`."""


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of the files."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "gpuledger" / "compiled"


def keep(graph: CompiledGraph, directory: Path) -> None:
    """Write what is known of a graph. Does nothing if the file cannot be written."""
    with suppress(Exception):  # a full disk, a read-only home: the cache is a convenience
        directory.mkdir(parents=True, exist_ok=True)
        _make_room(directory)
        write_whole(_file_of(graph, directory), json.dumps(_to_json(graph)).encode())


def recall(graph: CompiledGraph, directory: Path, known: Iterable[Modules]) -> CompiledGraph | None:
    """Return a graph from a cache with its places, from the process that compiled it; None if there is no file.

    Args:
        graph: The graph as it was loaded.
        directory: Where :func:`keep` writes.
        known: The modules of each graph that was compiled in this process. All modules of one of them must match.
    """
    try:
        value = read_json_file(_file_of(graph, directory))
        check_shape(value, _SHAPE, "")
        if (value["version"], value["torch"], value["content"]) != (VERSION, torch.__version__, _digest(graph.file)):
            return None
        return next((found for modules in known if (found := _from_json(graph, value, modules)) is not None), None)
    except Exception:  # missing, unreadable or not of this form
        return None


def _file_of(graph: CompiledGraph, directory: Path) -> Path:
    return directory / f"{Path(graph.file).stem}.json"


def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _make_room(directory: Path) -> None:
    files = list(directory.glob("*.json"))
    if len(files) > FILES:
        for old in sorted(files, key=lambda file: file.stat().st_mtime)[: FILES // 2]:
            old.unlink(missing_ok=True)


def _to_json(graph: CompiledGraph) -> dict[str, Any]:
    numbers: dict[Place, int] = {}

    def number(place: Place) -> int:
        return numbers.setdefault(place._replace(module_key=0), len(numbers))

    buffers = {name: number(place) for name, place in graph.buffers.items()}
    kernels = [
        {
            "outputs": one.outputs,
            "changed": one.changed,
            "nodes": one.nodes,
            "parts": [(number(place), moved_bytes) for place, moved_bytes in one.parts],
        }
        for one in graph.kernels
    ]
    places = [{"path": one.path, "class_name": one.class_name, "frames": one.frames} for one in numbers]
    return {
        "version": VERSION,
        "torch": torch.__version__,
        "content": _digest(graph.file),
        "places": places,
        "buffers": buffers,
        "kernels": kernels,
    }


def _from_json(graph: CompiledGraph, value: dict[str, Any], modules: Modules) -> CompiledGraph | None:
    """Return the graph with the modules of this process; None if one is missing or has another class."""
    places = []
    for one in value["places"]:
        key, class_name = modules.get(one["path"], (0, "")) if one["path"] else (0, one["class_name"])
        if class_name != one["class_name"]:
            return None
        frames = tuple((str(file), int(line), str(name)) for file, line, name in one["frames"])
        places.append(Place(key, one["path"], class_name, frames))
    kernels = [
        Kernel(
            tuple(one["outputs"]),
            tuple(one["changed"]),
            tuple(one["nodes"]),
            tuple((places[number], moved_bytes) for number, moved_bytes in one["parts"]),
        )
        for one in value["kernels"]
    ]
    return replace(
        graph, buffers={name: places[number] for name, number in value["buffers"].items()}, kernels=kernels, unknown=""
    )
