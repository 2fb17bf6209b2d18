"""Pools of the caching allocator as one number, as in ``blocks.pool_id``."""

# No postponed annotations: see :mod:`gpuledger.model.json_object`.
from dataclasses import dataclass
from typing import Annotated

from gpuledger.files.shapes import WholeNumber
from gpuledger.model.bounds import DEVICE
from gpuledger.model.json_object import JsonObject

UNKNOWN_POOL = -(2**31)
"""Pool of a block with a segment that is in no snapshot."""


def pool_number(of_graph: int, of_program: int) -> int:
    """Return 0 for the default pool, n for the pool of CUDA graph n, and -n for the program's own pool n.

    Source: ``segment_pool_id`` of torch's snapshots, a pair.
    """
    return of_graph or -of_program


def pool_pair(number: int) -> tuple[int, int]:
    """Return a pool as torch's pair: number of the CUDA graph's pool, number of the program's pool."""
    return max(number, 0), max(-number, 0)


@dataclass(frozen=True, kw_only=True)
class GraphPoolFacts(JsonObject):
    """A pool with memory of captured CUDA graphs, at the end of the recording.

    ``segments`` has the address and the bytes of each of its segments. ``is_older`` is True if it had segments when the
    recording began, so that what was captured in them is unknown.
    """

    device_idx: Annotated[int, WholeNumber(*DEVICE)]
    pool_id: int
    segments: tuple[tuple[int, int], ...]
    is_older: bool

    @property
    def reserved_bytes(self) -> int:
        """Return the bytes of its segments. No other tensor can have them while the graphs are alive."""
        return sum(size for _, size in self.segments)
