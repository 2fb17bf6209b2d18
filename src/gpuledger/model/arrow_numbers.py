"""Arrow integers as NumPy arrays, with Arrow's own buffers.

``pyarrow.compute`` does the same, but importing it takes longer than most commands need to read a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa


def to_numbers(values: pa.ChunkedArray | pa.Array, missing: int = -1) -> NDArray[np.int64]:
    """Return Arrow integers or truth values as int64[n], with ``missing`` for null."""
    chunks = values.chunks if hasattr(values, "chunks") else [values]
    parts = [_numbers_of(chunk, missing) for chunk in chunks]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def to_floats(values: pa.ChunkedArray | pa.Array) -> NDArray[np.float64]:
    """Return Arrow numbers as float64[n], NaN for null. Integers beyond 2^53 are rounded."""
    chunks = values.chunks if hasattr(values, "chunks") else [values]
    parts = [_values_of(chunk).astype(np.float64, copy=False) for chunk in chunks]
    parts = [
        np.where(_is_known(chunk), part, np.nan) if chunk.null_count else part
        for chunk, part in zip(chunks, parts, strict=True)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0), *parts])


def known_numbers(values: pa.Array) -> NDArray[np.generic]:
    """Return the values that are not null, without a copy if none is null. Integers keep their type."""
    if not values.null_count:
        return _values_of(values)
    return _values_of(values)[_is_known(values)]


def text_lengths(texts: pa.Array) -> NDArray[np.int64]:
    """Return the length of each text in bytes, int64[n]. A null may have one, too."""
    import pyarrow as pa

    kind = np.dtype(np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    if not len(texts):
        return np.zeros(0, dtype=np.int64)
    ends = np.frombuffer(texts.buffers()[1], kind, len(texts) + 1, texts.offset * kind.itemsize)
    return np.diff(ends).astype(np.int64)


def decoded_texts(coded: pa.DictionaryArray) -> pa.StringArray:
    """Return dictionary-coded texts with one text for each row."""
    import pyarrow as pa

    texts = [*coded.dictionary.to_pylist(), None]
    return pa.array([texts[place] for place in to_numbers(coded.indices).tolist()], pa.string())


def _numbers_of(values: pa.Array, missing: int) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = _values_of(values).astype(np.int64, copy=False)
    return np.where(_is_known(values), numbers, missing) if values.null_count else numbers


def _values_of(values: pa.Array) -> NDArray[np.generic]:
    """Return the values, with anything in the place of a null."""
    import pyarrow as pa

    count, data = len(values), values.buffers()[1]
    if pa.types.is_boolean(values.type):
        return _bits(data, values.offset, count)
    kind = _numpy_type(values.type)
    return np.frombuffer(data, kind, count, values.offset * kind.itemsize) if count else np.empty(0, kind)


def _numpy_type(kind: pa.DataType) -> np.dtype[np.generic]:
    """Return NumPy's type of the same numbers. ``to_pandas_dtype`` of pyarrow before 26 needs pandas."""
    import pyarrow as pa

    letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def _is_known(values: pa.Array) -> NDArray[np.bool_]:
    return _bits(values.buffers()[0], values.offset, len(values))


def _bits(buffer: pa.Buffer, offset: int, count: int) -> NDArray[np.bool_]:
    """Return ``count`` bits of an Arrow bitmap, which has the lowest bit of each byte first."""
    first, last = offset // 8, (offset + count + 7) // 8
    bits = np.unpackbits(np.frombuffer(buffer, dtype=np.uint8)[first:last], bitorder="little")
    return bits[offset % 8 : offset % 8 + count].view(np.bool_)
