"""The flame graph of source lines: bytes at one instant by call path, from the outermost frame to the innermost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.breakdown import coded_categories, sum_by_texts
from gpuledger.analyze.memory.lifetimes import I64, distinct, read_lives, read_numbers
from gpuledger.analyze.memory.lines.source_lines import (
    BEFORE_RECORDING,
    NO_STACK,
    NO_STACKS,
    Stack,
    program_directory,
    read_stacks,
    short_file,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuledger.analyze.memory.instant import Instant
    from gpuledger.model.run import Rank

LEAST_SHARE = 5e-4
"""A path with a smaller share of the bytes is not a node of its own. Its bytes stay in the nodes above it."""
_BEFORE, _NONE = -2, -1
_Child = tuple[int, str, str]


@dataclass(frozen=True)
class FlameNode:
    """One frame of a call path.

    Attributes:
        parent: Position of the frame that calls it; -1 for the first node, which is the whole.
        function: Function name, or the reason why there is no line.
        place: ``file:line``; "" if there is no line.
        bytes: Live bytes allocated by this path and by all paths that begin with it.
        category: Category with most of these bytes.
    """

    parent: int
    function: str
    place: str
    bytes: int
    category: str


class _Tree:
    """Nodes in the order of their first use; sums by category."""

    def __init__(self) -> None:
        self.keys: dict[tuple[int, str, str], int] = {(-1, "", ""): 0}
        self.sums: list[dict[str, int]] = [{}]

    def add(self, path: list[tuple[str, str]], category: str, size: int) -> None:
        node = 0
        self._count(node, category, size)
        for function, place in path:
            key = (node, function, place)
            node = self.keys.setdefault(key, len(self.keys))
            if node == len(self.sums):
                self.sums.append({})
            self._count(node, category, size)

    def _count(self, node: int, category: str, size: int) -> None:
        sums = self.sums[node]
        sums[category] = sums.get(category, 0) + size


def build_flame(rank: Rank, instant: Instant) -> tuple[FlameNode, ...]:
    """Return the nodes of the flame graph, parents before children, largest children first. Bytes are requested bytes.

    Frames of PyTorch and of Python's standard library are left out, unless a stack has no others.

    Source: caching allocator's history, exact; stacks of torch's stack capture.
    """
    device_idx = instant.device_idx
    lives, stacks = read_lives(rank, device_idx), read_stacks(rank)
    live = lives.allocated_at(instant.index)
    stack_ids = read_numbers(rank, "blocks", "stack_id", device_idx)
    stack_ids = np.where((stack_ids < 0) & (lives.alloc_index < 0), _BEFORE, stack_ids)[live]
    paths, tree = _paths(stacks), _Tree()
    codes, categories = coded_categories(rank, device_idx)
    words = [(codes[live], categories), _numbers(stack_ids)]
    for (category, number), size, _ in sum_by_texts(words, lives.requested_bytes[live]):
        tree.add(paths.get(int(number), paths[_NONE]), category, size)
    return _nodes(tree)


def _numbers(numbers: I64) -> tuple[I64, list[str]]:
    points, place = distinct(numbers)
    return place, [str(point) for point in points.tolist()]


def _paths(stacks: Mapping[int, Stack]) -> dict[int, list[tuple[str, str]]]:
    """Return stack id -> ``(function, place)`` of its frames, outermost first."""
    directory = program_directory(stacks.values())
    found = {_BEFORE: [(BEFORE_RECORDING, "")], _NONE: [(NO_STACK if stacks else NO_STACKS, "")]}
    for number, stack in stacks.items():
        kept = [frame for frame in reversed(stack) if not frame.framework] or list(reversed(stack))
        found[number] = [
            (frame.function, f"{short_file(frame.file, directory)}{'' if frame.line is None else f':{frame.line}'}")
            for frame in kept
        ]
    return found


def _nodes(tree: _Tree) -> tuple[FlameNode, ...]:
    """Return the nodes with a share of at least :data:`LEAST_SHARE`."""
    children: dict[int, list[_Child]] = {}
    sizes = [sum(sums.values()) for sums in tree.sums]
    least = LEAST_SHARE * sizes[0]
    for (parent, function, place), node in tree.keys.items():
        if node and sizes[node] >= least:
            children.setdefault(parent, []).append((node, function, place))
    found: list[FlameNode] = []
    waiting: deque[tuple[int, _Child]] = deque([(-1, (0, "", ""))])
    while waiting:
        parent, (node, function, place) = waiting.popleft()
        sums = tree.sums[node]
        category = max(sums, key=lambda name: (sums[name], name), default="")
        here = len(found)
        found.append(FlameNode(parent, function, place, sizes[node], category))
        below = sorted(children.get(node, ()), key=lambda child: (-sizes[child[0]], child[1:]))
        waiting += [(here, child) for child in below]
    return tuple(found)
