"""A change of a program after which blocks of some categories are smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SmallerBlocks:
    """A change after which blocks are smaller: the share of its bytes that is left, by category.

    Blocks of less than ``least_bytes`` stay. ``tried_share`` is what is left of the request.
    """

    shares: Mapping[str, float]
    least_bytes: int = 0
    tried_share: float = 1.0

    def left_bytes(self, size_bytes: int, category: str) -> int:
        """Return the bytes that are left of a block."""
        return size_bytes if size_bytes < self.least_bytes else round(size_bytes * self.shares.get(category, 1.0))
