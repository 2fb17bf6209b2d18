"""The JSON tree of MXNet's memory profiler: the tags' parts as nested nodes, ``{"name", "children" | "value"}``.

Its writer wraps one tree per device in ``{[ … ]}``, which is not valid JSON. A single tree is accepted as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.formats.json_pull import Token, tokens

MAX_DEPTH = 200
MAX_TAG = 4 << 20
_DEVICE = re.compile(r"dev(\d{1,4})$")


@dataclass
class _Node:
    name: str = ""
    value: float | None = None


class _Devices:
    """Devices of the trees so far. A file has the memory at one moment, so a device has one tree."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: set[int] = set()
        self._earlier: frozenset[int] = frozenset()

    def begin(self, depth: int) -> None:
        """Record the start of a value; at depth 0 it is a tree."""
        if depth == 0:
            self._earlier = frozenset(self._seen)

    def only_new(self, found: Iterator[tuple[int, str, float]]) -> Iterator[tuple[int, str, float]]:
        """Yield leaves.

        Raises:
            InputError: a leaf is of a device that an earlier tree has.
        """
        for leaf in found:
            if leaf[0] in self._earlier:
                raise InputError(f"{self._path}: a second tree of device {leaf[0]} would count its memory again")
            self._seen.add(leaf[0])
            yield leaf


def leaves(path: Path) -> Iterator[tuple[int, str, float]]:
    """Yield device, tag and bytes of every node with a value. The tag is the names of its ancestors, joined by ``:``.

    Raises:
        InputError: it is not valid JSON, nested too deep, or has a second tree of a device.
    """
    nodes: list[_Node] = []
    devices = _Devices(path)
    depth, key, after_colon = 0, "", False
    last = Token("")
    for token in tokens(path):
        if token.kind in "{[":
            devices.begin(depth)
            depth += 1
            if depth > 2 * MAX_DEPTH:
                raise InputError(f"{path}: nested more than {MAX_DEPTH} levels deep")
            if token.kind == "{":
                nodes.append(_Node())
        elif token.kind in "}]":
            depth -= 1
            if token.kind == "}":
                if not nodes:
                    raise InputError(f"{path}: not JSON: one closing brace too many")
                yield from devices.only_new(_leaf(nodes))
                nodes.pop()
        elif token.kind == ":":
            key, after_colon = last.text, True
            last = token
            continue
        elif nodes and after_colon:
            _set(nodes[-1], key, token)
        after_colon = False
        last = token
    if nodes or depth:
        raise InputError(f"{path}: cut off: {len(nodes)} nodes are still open at its end")


def _set(node: _Node, key: str, token: Token) -> None:
    if key == "name" and token.kind == "text":
        node.name = token.text
    elif key == "value" and token.kind == "number":
        node.value = token.number


def _leaf(nodes: list[_Node]) -> Iterator[tuple[int, str, float]]:
    value = nodes[-1].value
    if value is not None:
        inner = nodes[1:] if len(nodes) > 1 and not nodes[0].name else nodes  # the wrapper has no name
        found = _DEVICE.search(inner[0].name)
        tag = ":".join(node.name for node in (inner[1:] or inner))
        yield int(found[1]) if found else 0, tag[:MAX_TAG], value
