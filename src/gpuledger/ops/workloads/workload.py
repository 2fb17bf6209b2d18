"""A workload: the distinct operators of a model with their counts, and its distinct layers, in one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpuledger.errors import InputError
from gpuledger.files.reading import MIB, parse_json, read_limited, reading
from gpuledger.files.shapes import Fields, ListOf, MappingOf, check_shape, maybe
from gpuledger.files.writing import output
from gpuledger.operator_key import OperatorKey

VERSION = 1
"""Version of the file. Newer versions are rejected."""
SUFFIX = ".workload.json"
Mode = Literal["inference", "training"]
MODES = ("inference", "training")
HINT = "Write a workload with: gpuledger ops capture"
LARGEST_BYTES = 64 * MIB
_COUNT = 1 << 48
_USES = ListOf(
    Fields(
        {"key": object, "count": int, "modules": ListOf(ListOf(object, 2, 2)), "reuse_bytes": maybe(float)},
        ("key", "count", "modules", "reuse_bytes"),
    )
)
_LAYERS = ListOf(
    Fields(
        {
            "class_name": str,
            "extra_repr": str,
            "inputs": ListOf(object),
            "outputs": ListOf(object),
            "parameters": ListOf(ListOf(object, 2, 2)),
            "count": int,
            "uses": ListOf(ListOf(object, 2, 2)),
        },
        ("class_name", "extra_repr", "inputs", "outputs", "parameters", "count", "uses"),
    )
)
_SETTINGS = Fields(
    {
        "device": maybe(str),
        "torch": maybe(str),
        "notes": maybe(ListOf(str)),
        "no_kernel": maybe(MappingOf(int)),
        "model": maybe(str),
        "inputs": maybe(ListOf(str)),
        "batch": maybe(int),
        "weights": maybe(str),
        "optimizer": maybe(str),
        "autocast": maybe(str),
        "module_calls": maybe(int),
        "autograd_nodes": maybe(int),
        "host_calls": maybe(int),
    }
)
_WORKLOAD = Fields(
    {"name": str, "mode": str, "uses": _USES, "layers": _LAYERS, "settings": _SETTINGS},
    ("name", "mode", "uses", "layers", "settings"),
)


@dataclass(frozen=True)
class Use:
    """One distinct operator in a workload.

    Attributes:
        key: The operator.
        count: How often it runs in one step (training) or one call (inference).
        modules: Module paths with the count in each; ``""`` is outside modules.
        reuse_bytes: Reuse distance, the median over the calls: bytes accessed since half of the input bytes were;
            None if no input was accessed before in the capture.
    """

    key: OperatorKey
    count: int
    modules: tuple[tuple[str, int], ...] = ()
    reuse_bytes: float | None = None


@dataclass(frozen=True)
class Layer:
    """One distinct leaf module, with equal class, arguments and shapes.

    Attributes:
        inputs: Tensor descriptions, as in a key.
        parameters: ``(name, shape)``.
        uses: Digests of the operators inside one call, with their counts.
    """

    class_name: str
    extra_repr: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    count: int
    uses: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Workload:
    """All operators of one inference or one training step of a model."""

    name: str
    mode: Mode
    uses: tuple[Use, ...]
    layers: tuple[Layer, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """Return the number of operator calls in one step."""
        return sum(use.count for use in self.uses)

    @property
    def file_name(self) -> str:
        """Return the default name of its file."""
        return self.name + SUFFIX

    def write(self, path: Path) -> None:
        """Write the workload as one JSON file. A link is followed."""
        with output(path) as stream:
            stream.write(self.encoded())

    def encoded(self) -> bytes:
        """Return the content of the workload's file."""
        # A lone surrogate, which UTF-8 cannot encode, becomes its JSON escape.
        return f"{json.dumps(to_json(self), ensure_ascii=False, allow_nan=False)}\n".encode(errors="backslashreplace")


def to_json(workload: Workload) -> dict[str, Any]:
    """Return the workload as a JSON value."""
    return {
        "gpuledger_workload": VERSION,
        "name": workload.name,
        "mode": workload.mode,
        "settings": dict(workload.settings),
        "uses": [
            {
                "key": use.key.to_json(),
                "count": use.count,
                "modules": [list(pair) for pair in use.modules],
                "reuse_bytes": use.reuse_bytes,
            }
            for use in workload.uses
        ],
        "layers": [_layer_to_json(layer) for layer in workload.layers],
    }


def _layer_to_json(layer: Layer) -> dict[str, Any]:
    return {
        "class_name": layer.class_name,
        "extra_repr": layer.extra_repr,
        "inputs": list(layer.inputs),
        "outputs": list(layer.outputs),
        "parameters": [[name, list(shape)] for name, shape in layer.parameters],
        "count": layer.count,
        "uses": [list(pair) for pair in layer.uses],
    }


def read_workload(path: str | Path) -> Workload:
    """Return the workload in a file.

    Raises:
        InputError: there is no such file, it is not a workload, damaged, or of a newer version.
    """
    with reading(path, "not JSON", HINT):
        value = parse_json(read_limited(Path(path), LARGEST_BYTES), path)
    if not isinstance(value, dict) or not isinstance(value.get("gpuledger_workload"), int):
        raise InputError(f"{path}: not a workload file", hint=HINT)
    if value["gpuledger_workload"] > VERSION:
        raise InputError(
            f"{path}: workload version {value['gpuledger_workload']}, but this gpuledger reads up to version {VERSION}",
            hint="pip install --upgrade gpuledger",
        )
    with reading(path, "damaged workload", "Capture the workload again with: gpuledger ops capture"):
        return from_json(value)


def from_json(value: Mapping[str, Any]) -> Workload:
    """Return the workload that :func:`to_json` wrote; KeyError, TypeError or ValueError if it is invalid."""
    check_shape(value, _WORKLOAD, "")
    if value["mode"] not in MODES:
        raise ValueError(f"mode {value['mode']!r}, expected {' or '.join(MODES)}")
    return Workload(
        str(value["name"]),
        value["mode"],
        tuple(_use_from_json(use) for use in value["uses"]),
        tuple(_layer_from_json(layer) for layer in value["layers"]),
        dict(value["settings"]),
    )


def _counted(value: Any) -> int:
    """Return a count.

    Raises:
        ValueError: it is not a whole number, negative, or more than any step has.
    """
    check_shape(value, int, "count")
    if not 0 <= value <= _COUNT:
        raise ValueError(f"the count {value:,} is out of range")
    return int(value)


def _use_from_json(value: Mapping[str, Any]) -> Use:
    modules = tuple((str(path), _counted(count)) for path, count in value["modules"])
    reuse_bytes = value["reuse_bytes"]
    return Use(
        OperatorKey.from_json(value["key"]),
        _counted(value["count"]),
        modules,
        None if reuse_bytes is None else float(reuse_bytes),
    )


def _layer_from_json(value: Mapping[str, Any]) -> Layer:
    return Layer(
        str(value["class_name"]),
        str(value["extra_repr"]),
        tuple(value["inputs"]),
        tuple(value["outputs"]),
        tuple((str(name), tuple(int(size) for size in shape)) for name, shape in value["parameters"]),
        _counted(value["count"]),
        tuple((str(digest), _counted(count)) for digest, count in value["uses"]),
    )
