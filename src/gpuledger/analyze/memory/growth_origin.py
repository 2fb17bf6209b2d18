"""Where the blocks were allocated that recorded steps kept: category, module and line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.source_files import is_framework, is_own

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuledger.model.run import Rank

LEAST_PART, MOST_PART = 0.05, 2.0
"""Bytes that a recorded step keeps in one place, relative to the growth of memory in a step."""


@dataclass(frozen=True)
class RetainedBlocks:
    """Blocks that were allocated in recorded steps and are still allocated. Ids are -1 where unknown."""

    category: NDArray[np.int64]
    module_id: NDArray[np.int64]
    stack_id: NDArray[np.int64]
    step: NDArray[np.int64]
    bytes: NDArray[np.float64]


def origin_of(rank: Rank, blocks: RetainedBlocks, categories: Sequence[str], step_bytes: float) -> tuple[str, str, str]:
    """Return category, module and line of most bytes that at least two steps kept; "" where unknown.

    What a step keeps must be a part of ``step_bytes``, by which memory grows in a step, and not much more than it.
    """
    sizes: Counter[tuple[int, int]] = Counter()
    steps: dict[tuple[int, int], set[int]] = {}
    lines: dict[tuple[int, int], Counter[int]] = {}
    columns = (blocks.category, blocks.module_id, blocks.stack_id, blocks.step, blocks.bytes)
    for code, module_id, stack_id, step, size in zip(*(column.tolist() for column in columns), strict=True):
        key = code, module_id
        sizes[key] += size
        steps.setdefault(key, set()).add(step)
        if stack_id >= 0:
            lines.setdefault(key, Counter())[stack_id] += size
    for (code, module_id), size in sizes.most_common():
        of_steps = len(steps[code, module_id])
        if of_steps >= 2 and LEAST_PART <= size / of_steps / step_bytes <= MOST_PART:
            stack = lines.get((code, module_id))
            line = program_line(rank, stack.most_common(1)[0][0]) if stack else ""
            return categories[code], module_path(rank, module_id), line
    return "", "", ""


def module_path(rank: Rank, module_id: int) -> str:
    """Return the path of a module; "" if there is none."""
    table = rank.table("modules", ("module_id", "path"))
    paths = dict(zip(table.column("module_id").to_pylist(), table.column("path").to_pylist(), strict=True))
    return str(paths.get(module_id, ""))


def program_line(rank: Rank, stack_id: int) -> str:
    """Return ``file:line`` of a stack's innermost frame of the program, or of a library; "" if there is none.

    Of PyTorch and of Python's own library, and of files of which the line is unknown, none is returned.
    """
    table = rank.table("stacks", ("stack_id", "frame_idx", "file", "line", "function"))
    rows = zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
    frames = [row[2:] for row in sorted(row for row in rows if row[0] == stack_id)]
    for belongs in (is_own, lambda file, function: not is_framework(file, function)):
        for file, line, function in frames:
            if line and belongs(file, function):
                return f"{file.rpartition('/')[2]}:{line}"
    return ""
