"""Keep the places of backward graphs that AOTAutograd's cache has as code, for compiled autograd in later processes.

A file is written beside those of :mod:`.compiled_cache`, with a name that is a hash of the graph's code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

from gpuledger.collect.adapter.compiler.compiled_autograd import Step
from gpuledger.collect.adapter.compiler.compiled_cache import VERSION, write_file
from gpuledger.collect.adapter.compiler.graph_nodes import CapturedGraph, FoundPlace, NodeOrigin
from gpuledger.files.reading import read_json_file
from gpuledger.files.shapes import Fields, ListOf, check_shape

_PLACE = Fields(
    {"path": str, "class_name": str, "frames": ListOf(ListOf(object, 3, 3)), "is_forward": bool},
    ("path", "class_name", "frames", "is_forward"),
)
_SHAPE = Fields(
    {"version": int, "torch": str, "steps": ListOf(ListOf(object, 2, 2)), "places": ListOf(_PLACE)},
    ("version", "torch", "steps", "places"),
)


def keep_backward(directory: Path, code: str, steps: Iterable[Step]) -> None:
    """Write the places of a backward graph's nodes. Does nothing if the file cannot be written."""
    with suppress(Exception):  # a full disk, a read-only home: the cache is a convenience
        numbers: dict[FoundPlace, int] = {}
        known = [(step.operator, numbers.setdefault(step.found, len(numbers))) for step in steps]
        places = [
            {"path": at.path, "class_name": at.class_name, "frames": at.frames, "is_forward": is_forward}
            for at, is_forward in numbers
        ]
        write_file(_file_of(directory, code), {"steps": known, "places": places})


def recall_backward(directory: Path, code: str, possible: Iterable[CapturedGraph]) -> tuple[Step, ...]:
    """Return the nodes of a backward graph from a cache; none if there is no file, or no captured graph fits.

    Args:
        directory: Where the files are.
        code: The code of the graph.
        possible: The captured graphs that it can be the backward of. The first one with its modules is taken.
    """
    try:
        value = read_json_file(_file_of(directory, code))
        check_shape(value, _SHAPE, "")
        if (value["version"], value["torch"]) != (VERSION, torch.__version__):
            return ()
        wanted = {(one["path"], one["class_name"]) for one in value["places"] if one["path"]}
        modules = next(
            one.modules for one in possible if wanted <= {(path, cls) for path, (_, cls) in one.modules.items()}
        )
        places = [
            FoundPlace(
                NodeOrigin(
                    modules[one["path"]][0] if one["path"] else 0,
                    one["path"],
                    one["class_name"],
                    tuple((str(file), int(line), str(name)) for file, line, name in one["frames"]),
                ),
                one["is_forward"],
            )
            for one in value["places"]
        ]
        return tuple(Step(str(operator), places[int(number)]) for operator, number in value["steps"])
    except Exception:  # missing, unreadable or not of this form
        return ()


def _file_of(directory: Path, code: str) -> Path:
    return directory / f"backward-{hashlib.sha256(code.encode()).hexdigest()}.json"
