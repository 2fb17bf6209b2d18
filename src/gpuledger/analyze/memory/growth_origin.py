"""Where the blocks were allocated that recorded steps kept: category, module and line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuledger.model.run import Rank


@dataclass(frozen=True)
class KeptBlocks:
    """Blocks that were allocated in recorded steps and are still allocated. Ids are -1 where unknown."""

    category: NDArray[np.int64]
    module_id: NDArray[np.int64]
    stack_id: NDArray[np.int64]
    step: NDArray[np.int64]
    bytes: NDArray[np.float64]


def origin_of(rank: Rank, blocks: KeptBlocks, categories: Sequence[str]) -> tuple[str, str, str]:
    """Return category, module and line of the most bytes that at least two steps kept; "" where unknown."""
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
    for (code, module_id), _ in sizes.most_common():
        if len(steps[code, module_id]) >= 2:
            stack = lines.get((code, module_id))
            line = innermost_line(rank, stack.most_common(1)[0][0]) if stack else ""
            return categories[code], module_path(rank, module_id), line
    return "", "", ""


def module_path(rank: Rank, module_id: int) -> str:
    """Return the path of a module; "" if there is none."""
    table = rank.table("modules", ("module_id", "path"))
    paths = dict(zip(table.column("module_id").to_pylist(), table.column("path").to_pylist(), strict=True))
    return str(paths.get(module_id, ""))


def innermost_line(rank: Rank, stack_id: int) -> str:
    """Return ``file:line`` of a stack's innermost frame outside torch; "" if there is none."""
    table = rank.table("stacks", ("stack_id", "frame_idx", "file", "line"))
    rows = zip(*(table.column(name).to_pylist() for name in ("stack_id", "frame_idx", "file", "line")), strict=True)
    for _, _, file, line in sorted(row for row in rows if row[0] == stack_id):
        if "/torch/" not in file:
            return f"{file.rpartition('/')[2]}:{line}"
    return ""
