"""Global memory used by a reduction. With few results, several thread blocks add parts and combine them there.

Source: aten/src/ATen/native/cuda/Reduce.cuh (setReduceConfig, global_memory_size). Matches to the byte for all 3,666
sums over a convolution's result that used any, of 11,886 on an H200 (bench/estimate/conv_workspaces.py).
"""

from __future__ import annotations

from functools import lru_cache

_THREADS, _WARP, _THREADS_PER_PROCESSOR = 512, 32, 2048
_LEAST_VALUES, _MOST_VALUES = 16, 256
_FLOAT_BYTES = 4


def _last_power(number: int) -> int:
    return 1 << (number.bit_length() - 1)


@lru_cache(maxsize=1 << 16)
def sum_bytes(inputs: int, outputs: int, multiprocessors: int, *, along_inputs: bool) -> tuple[int, ...]:
    """Return the sizes of a reduction's two buffers: partial sums and counters. Empty if single thread blocks suffice.

    Args:
        inputs: Number of values per result.
        outputs: Number of results.
        multiprocessors: Multiprocessors of the GPU.
        along_inputs: Whether the reduced values are adjacent in memory, rather than the results.
    """
    if not inputs or not outputs:
        return ()
    vector = 1 if along_inputs else next(size for size in (4, 2, 1) if outputs % size == 0)
    across, down = (inputs, outputs) if along_inputs else (outputs // vector, inputs)
    width, height = _block(across, down, _THREADS // vector)
    splits = width if along_inputs else 1
    values = -(-inputs // splits)
    splits_rows = values >= height * _LEAST_VALUES or values >= _MOST_VALUES
    values = -(-inputs // (splits * height)) if splits_rows else values
    each = (1 if along_inputs else width) * (1 if splits_rows else height)
    grid = -(-(outputs // vector) // each)
    target = multiprocessors * (_THREADS_PER_PROCESSOR // (width * height))
    if not splits_rows or values < _MOST_VALUES or grid > target:
        return ()
    blocks = max(min(-(-target // grid), -(-values // _LEAST_VALUES)), -(-values // _MOST_VALUES))
    if blocks <= 1:
        return ()
    lanes = 1 if along_inputs else width * vector
    return _FLOAT_BYTES * outputs * blocks * lanes, 4 * grid


def _block(across: int, down: int, most: int) -> tuple[int, int]:
    """Return width and height of a thread block."""
    wide = most if across >= most else _last_power(max(across, 1))
    high = most if down >= most else _last_power(max(down, 1))
    width = min(wide, _WARP)
    height = min(high, most // width)
    return min(wide, most // height), height
