"""Keep what was read of a compiled graph, for later compilations that load its code from Inductor's cache.

Inductor's cache keeps the generated code without the nodes that it was made from. So a small file with their places is
written at the first compilation: ``$XDG_CACHE_HOME/gpuledger/compiled/NAME.json``, where NAME is that of the generated
file, which is a hash of its content. It is used only for a captured graph with as many nodes, in modules of the same
classes. Their paths can differ: equal blocks of one model have the same code.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gpuledger.collect.adapter.compiler.compiled_lines import common_place
from gpuledger.collect.adapter.compiler.graph_nodes import CapturedGraph, CompiledGraph, Kernel, NodeOrigin
from gpuledger.files.reading import read_json_file
from gpuledger.files.shapes import Fields, ListOf, MappingOf, check_shape
from gpuledger.files.writing import write_whole

VERSION = 6
FILES = 1_000
"""Number of files above which the oldest half is deleted."""

_SHAPE = Fields(
    {
        "version": int,
        "torch": str,
        "content": str,
        "unknown": str,
        "modules": ListOf(ListOf(str, 2, 2)),
        "nodes": int,
        "places": ListOf(Fields({"path": str, "class_name": str, "frames": ListOf(ListOf(object, 3, 3)), "node": int})),
        "buffers": MappingOf(int),
        "bodies": MappingOf(int),
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
    ("version", "torch", "content", "unknown", "modules", "nodes", "places", "buffers", "bodies", "kernels"),
)


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of the files."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "gpuledger" / "compiled"


def keep(graph: CompiledGraph, directory: Path, possible: Iterable[CapturedGraph]) -> None:
    """Write what is known of a graph. Does nothing if the file cannot be written.

    Args:
        graph: The graph as it was compiled.
        directory: Where the files are.
        possible: The captured graphs that it can be of. The first one with its modules is taken.
    """
    with suppress(Exception):  # a full disk, a read-only home: the cache is a convenience
        wanted = {(place.path, place.module_key) for place in _places_of(graph) if place.path and place.module_key >= 0}
        captured = next(one for one in possible if wanted <= {(path, key) for path, (key, _) in one.modules.items()})
        write_file(_file_of(graph, directory), _to_json(graph, captured))


def recall(graph: CompiledGraph, directory: Path, possible: Iterable[CapturedGraph]) -> CompiledGraph | None:
    """Return a graph from a cache with its places, from the process that compiled it; None if there is no file.

    Args:
        graph: The graph as it was loaded.
        directory: Where :func:`keep` writes.
        possible: The captured graphs that it can be of. If several match, each place is the module around theirs.
    """
    try:
        value = read_json_file(_file_of(graph, directory))
        check_shape(value, _SHAPE, "")
        if (value["version"], value["torch"], value["content"]) != (VERSION, torch.__version__, _digest(graph.file)):
            return None
        found = [places for captured in possible if (places := _places_in(captured, value)) is not None]
        if not found:
            return None
        return _from_json(graph, value, [common_place(list(places)) for places in zip(*found, strict=True)])
    except Exception:  # missing, unreadable or not of this form
        return None


_Read = tuple[dict[str, NodeOrigin], list[Kernel], dict[str, NodeOrigin], str]

_read: dict[int, tuple[weakref.ref[ModuleType], _Read]] = {}
"""What recordings of this process have read: ``id`` of a generated file's module -> the module, and its graph."""


def remember(graph: CompiledGraph) -> None:
    """Keep what is known of a graph for later recordings of this process."""
    known = graph.buffers, graph.kernels, graph.bodies, graph.unknown
    _read[id(graph.module)] = weakref.ref(graph.module), known


def remembered(graph: CompiledGraph) -> CompiledGraph | None:
    """Return a graph that was loaded with what an earlier recording of this process has read; None if none has."""
    reference, known = _read.get(id(graph.module), (None, None))
    if reference is None or known is None or reference() is not graph.module:
        return None
    buffers, kernels, bodies, unknown = known
    return replace(graph, buffers=buffers, kernels=kernels, bodies=bodies, unknown=unknown)


def _places_of(graph: CompiledGraph) -> Iterator[NodeOrigin]:
    yield from graph.buffers.values()
    yield from graph.bodies.values()
    for kernel in graph.kernels:
        yield from (place for place, _ in kernel.parts)


def _file_of(graph: CompiledGraph, directory: Path) -> Path:
    return directory / f"{Path(graph.file).stem}.json"


def write_file(file: Path, value: dict[str, Any]) -> None:
    """Write a file of the cache, with the versions that it is of. Deletes old ones if there are too many."""
    file.parent.mkdir(parents=True, exist_ok=True)
    _make_room(file.parent)
    write_whole(file, json.dumps({"version": VERSION, "torch": torch.__version__, **value}).encode())


def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _make_room(directory: Path) -> None:
    files = list(directory.glob("*.json"))
    if len(files) > FILES:
        for old in sorted(files, key=_changed_s)[: FILES // 2]:
            old.unlink(missing_ok=True)


def _changed_s(file: Path) -> float:
    """Return when a file was written; 0 if another process has deleted it meanwhile."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _to_json(graph: CompiledGraph, captured: CapturedGraph) -> dict[str, Any]:
    numbers: dict[NodeOrigin, int] = {}

    def number(place: NodeOrigin) -> int:
        return numbers.setdefault(place, len(numbers))

    buffers = {name: number(place) for name, place in graph.buffers.items()}
    bodies = {name: number(place) for name, place in graph.bodies.items()}
    kernels = [
        {
            "outputs": one.outputs,
            "changed": one.changed,
            "nodes": one.nodes,
            "parts": [(number(place), moved_bytes) for place, moved_bytes in one.parts],
        }
        for one in graph.kernels
    ]
    nodes = list(captured.nodes.values())
    first = {place: at for at, place in reversed(list(enumerate(nodes)))}
    places = [
        {"path": one.path, "class_name": one.class_name, "frames": one.frames, "node": first.get(one, -1)}
        for one in numbers
    ]
    return {
        "content": _digest(graph.file),
        "unknown": graph.unknown,
        "modules": [(path, class_name) for path, (_, class_name) in captured.modules.items()],
        "nodes": len(nodes),
        "places": places,
        "buffers": buffers,
        "bodies": bodies,
        "kernels": kernels,
    }


def _places_in(captured: CapturedGraph, value: dict[str, Any]) -> list[NodeOrigin] | None:
    """Return the places of a file in a captured graph; None if that graph has other nodes or modules."""
    nodes = list(captured.nodes.values())
    if len(nodes) != value["nodes"]:
        return None
    classes = [class_name for _, class_name in captured.modules.values()]
    has_same = classes == [class_name for _, class_name in value["modules"]]
    now = {old: new for (old, _), new in zip(value["modules"], captured.modules.items(), strict=has_same)}
    places = []
    for one in value["places"]:
        frames = tuple((str(file), int(line), str(name)) for file, line, name in one["frames"])
        if one["node"] >= 0:
            places.append(nodes[one["node"]])
        elif not one["path"]:
            places.append(NodeOrigin(0, "", one["class_name"], frames))
        elif has_same:
            path, (key, class_name) = now[one["path"]]
            places.append(NodeOrigin(key, path, class_name, frames))
        else:
            return None
        names = {places[-1].class_name, one["class_name"]} - {""}  # Dynamo does not name the class of its own module
        if len(names) > 1:
            return None
    return places


def _from_json(graph: CompiledGraph, value: dict[str, Any], places: list[NodeOrigin]) -> CompiledGraph:
    """Return the graph with its places."""
    kernels = [
        Kernel(
            tuple(one["outputs"]),
            tuple(one["changed"]),
            tuple(one["nodes"]),
            tuple((places[number], moved_bytes) for number, moved_bytes in one["parts"]),
        )
        for one in value["kernels"]
    ]
    buffers, bodies = ({name: places[number] for name, number in value[kind].items()} for kind in ("buffers", "bodies"))
    return replace(graph, buffers=buffers, bodies=bodies, kernels=kernels, unknown=value["unknown"])
