"""Operator lists of tritonbench: ``Operator: aten.x`` followed by lines ``cnt: N, (arguments, {keywords})``.

The arguments are Python expressions. They are parsed and never evaluated.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError
from gpuledger.files.reading import MIB, read_text, reading
from gpuledger.operator_key import KEYWORDS, NO_FLAGS, OperatorKey
from gpuledger.ops.workloads.describe_json import contiguous
from gpuledger.ops.workloads.workload import Mode, Use, Workload

LARGEST_BYTES = 64 * MIB
LONGEST_LINE = 1 << 16
"""Maximum characters of a line. A call has a few hundred; Python's parser needs a hundred times the line's size."""
DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8", "b8": "bool", "c32": "complex32", "c64": "complex64",
    "c128": "complex128",
}  # fmt: skip
_LAYOUTS = ("strided", "sparse_coo", "sparse_csr")
_MEMORY_FORMATS = ("preserve_format", "contiguous_format", "channels_last", "channels_last_3d")
_HEAD, _COUNT = "Operator: ", "cnt: "


def read_list(path: Path) -> Workload:
    """Return the workload of one list, named after the file.

    Raises:
        InputError: it cannot be read, or a line is not a call.
    """
    lines = read_text(path, LARGEST_BYTES).splitlines()
    counts: dict[OperatorKey, int] = {}
    operator = ""
    for number, line in enumerate(lines, 1):
        if line.startswith(_HEAD):
            operator = line.removeprefix(_HEAD).strip()
        elif line.startswith(_COUNT) and operator:
            key, count = _call(f"{path}:{number}", operator, line)
            counts[key] = counts.get(key, 0) + count
        elif line.strip():
            raise InputError(
                f"{path}:{number}: expected an operator or a call",
                hint="Import a list that begins with a line such as: Operator: aten.mm.default",
            )
    if not counts:
        raise InputError(
            f"{path}: the file has no operator calls",
            hint="Import a list that begins with a line such as: Operator: aten.mm.default",
        )
    uses = tuple(Use(key, count) for key, count in counts.items())
    mode: Mode = "training" if "train" in f"{path.parent.name}/{path.name}" else "inference"
    return Workload(path.stem, mode, uses, (), {"device": "unknown", "source": path.name, "notes": [], "no_kernel": {}})


def _call(place: str, operator: str, line: str) -> tuple[OperatorKey, int]:
    count, _, arguments = line.removeprefix(_COUNT).partition(",")
    with reading(place, "not an operator call"):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"a line is longer than {LONGEST_LINE:,} characters")
        positional, keywords = _value(ast.parse(arguments.strip(), mode="eval").body)
        named = {name: value for name, value in keywords.items() if value is not None and value != _STRIDED}
        inputs = (*positional, {KEYWORDS: named}) if named else tuple(positional)
        key = {"operator": _with_overload(operator), "inputs": list(inputs), "flags": dict(NO_FLAGS)}
        return OperatorKey.from_json(json.loads(json.dumps(key, allow_nan=False))), int(count)


_STRIDED = {"layout": "strided"}


def _with_overload(operator: str) -> str:
    return operator if operator.count(".") > 1 else f"{operator}.default"


def _value(node: ast.expr) -> Any:
    """Return an expression's value in the form of a key; ValueError for an expression that no list contains."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str | None):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(inner) for inner in node.elts]
    if isinstance(node, ast.Dict):
        return _keywords(node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand)
        return {"float": "-inf"} if value == {"float": "inf"} else -value
    if isinstance(node, ast.Call):
        return _tensor(node)
    return _name(node)


def _keywords(node: ast.Dict) -> dict[str, Any]:
    found = {}
    for name, value in zip(node.keys, node.values, strict=True):
        text = _value(name) if name is not None else None
        if not isinstance(text, str):
            raise ValueError("a keyword is not a string")
        given = _value(value)
        found[text] = {"device": "card" if "cuda" in str(given) else "host"} if text == "device" else given
    return found


def _name(node: ast.expr) -> Any:
    text = ast.unparse(node).removeprefix("torch.")
    if text in DTYPES:
        return {"torch": DTYPES[text]}
    if text in DTYPES.values():
        return {"torch": text}
    if text in ("inf", "nan"):
        return {"float": text}
    if text in _MEMORY_FORMATS:
        return {"memory_format": text}
    if text in _LAYOUTS:
        return {"layout": text}
    raise ValueError(f"unknown {text}")


def _tensor(node: ast.Call) -> dict[str, Any]:
    """``T([32, 1000], f16, stride=(1000, 1))``, or ``ST(…)`` for a sparse one."""
    kind = ast.unparse(node.func)
    if kind not in ("T", "ST") or len(node.args) < 2:
        raise ValueError(f"unknown {kind}")
    shape = _value(node.args[0])
    if not all(isinstance(size, int) for size in shape):
        raise ValueError("a shape is not a list of sizes")
    tensor: dict[str, Any] = {"shape": shape, "dtype": _value(node.args[1])["torch"]}
    if kind == "ST":
        return {**tensor, "layout": "sparse_coo"}
    given = {keyword.arg: _value(keyword.value) for keyword in node.keywords}
    stride = _value(node.args[2]) if len(node.args) > 2 else given.get("stride")
    return {**tensor, "stride": list(stride) if stride is not None else contiguous(shape)}
