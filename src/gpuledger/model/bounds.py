"""Valid ranges of the columns of journals and tables.

Other values are damage, and would overflow sums or fill memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from gpuledger.files.shapes import WholeNumber

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bounds = tuple[int, int]

TIME_NS: Bounds = (-(1 << 61), (1 << 62) - 1)
SIZE_BYTES: Bounds = (-1, 1 << 48)
LARGEST_REQUEST_BYTES = 1 << 44
"""More than any GPU has. The size of a failed request is stored as this if it is larger, so that sums stay in range.

A larger size in a file of another tool means that the file is damaged.
"""
ADDRESS: Bounds = (-1, 1 << 62)
COUNT: Bounds = (-1, 1 << 48)
DEVICE: Bounds = (-2, 1 << 16)
DeviceIdx = Annotated[int, WholeNumber(*DEVICE)]
"""A device in a manifest; stored in a 32-bit column of the tables."""
LARGEST_SUM_BYTES = float(1 << 61)
"""Maximum sum of all sizes of one column. A cumulative sum in 64 bits has room for twice this."""
LARGEST_REAL = 1e18

_BY_NAME: dict[str, Bounds] = {
    "address": ADDRESS,
    "segment_address": ADDRESS,
    "bytes": SIZE_BYTES,
    "device_idx": DEVICE,
    "energy_mj": (-1, 1 << 61),
    "step": (-1, (1 << 31) - 2),
    "depth": (0, 1 << 20),
    "line": (-(1 << 31), (1 << 31) - 1),
}
_BY_ENDING: tuple[tuple[str, Bounds], ...] = (
    ("_ns", TIME_NS),
    ("_bytes", SIZE_BYTES),
    ("_index", COUNT),
    ("_count", COUNT),
)


def bounds_of(column: str) -> Bounds | None:
    """Return minimum and maximum of an integer column by its name; None if only its type limits it."""
    if column in _BY_NAME:
        return _BY_NAME[column]
    return next((bounds for ending, bounds in _BY_ENDING if column.endswith(ending)), None)


def check_bounds(values: NDArray[Any], place: str) -> None:
    """Check the values of ``place``, which is ``table.column``. Nulls are ignored.

    Raises:
        ValueError: a value is out of range, or the sizes add up to more than a 64-bit integer.
    """
    import numpy as np

    if not values.size:
        return
    if values.dtype.kind == "f":
        known = values[~np.isnan(values)]
        if known.size and float(np.abs(known).max()) > LARGEST_REAL:
            raise ValueError(f"{place}: {np.abs(known).max():g} is out of range")
        return
    bounds = bounds_of(place.rpartition(".")[2])
    if bounds is None or values.dtype.kind not in "iu":
        return
    least, greatest = int(values.min()), int(values.max())
    if least < bounds[0] or greatest > bounds[1]:
        raise ValueError(f"{place}: {least if least < bounds[0] else greatest} is out of range")
    if bounds is SIZE_BYTES and float(values.sum(dtype=np.float64)) > LARGEST_SUM_BYTES:
        raise ValueError(f"{place}: the sum of its sizes does not fit into 64 bits")
