"""Operators with indices: sorted copies of them, and of the values that are ordered."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gpuledger.simulate.temporaries.spaces import Rule, Spaces, argument, bytes_of

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.device import SimulatedDevice
    from gpuledger.simulate.traits import Traits

aten = torch.ops.aten
_INDEX_BYTES, _NUMBER_BYTES = 8, 4
_LARGEST = 2

_SMALL_EMBEDDING, _ROWS_A_PART, _FEW_ROWS = 3072, 10, 32
_SORT_TILE, _SORT_TILE_BYTES, _SORT_FIXED_BYTES, _SCAN_BYTES = 4608, 1024, 16_895, 1279


def _embedding_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    return _gradient_of_rows(args[0], args[1], args[2])


def _bag_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """As of a plain embedding, if the gradient is dense and no maximum. Source: native/cuda/EmbeddingBag.cu."""
    return None if args[9] or args[8] == _LARGEST else _gradient_of_rows(args[0], args[1], args[6])


def _gradient_of_rows(gradient: torch.Tensor, indices: torch.Tensor, weights: int) -> Spaces | None:
    """Sorted indices, a float32 buffer for sums of at most ten rows, and the sums of each row.

    Source: aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu. Equal to the byte for 4,096 to 65,536 indices in
    seven trainings; the buffer of the sort was fitted to five of its sizes (keys and positions twice, 1 KiB per tile).
    Tables of 2 and 32 rows had positions where larger ones had floats. Up to 3,072 indices are not sorted.
    """
    count = indices.numel()
    if count <= _SMALL_EMBEDDING:
        return None
    index_bytes = count * indices.element_size()
    rows = min(count, weights)
    parts = count // _ROWS_A_PART + rows
    sort_bytes = 2 * index_bytes + _SORT_TILE_BYTES * -(-count // _SORT_TILE) + _SORT_FIXED_BYTES
    sums_bytes = parts * (8 if weights <= _FEW_ROWS else gradient.shape[-1] * 4)
    return Spaces(
        "embedding backward",
        before=(index_bytes, index_bytes),
        first=(index_bytes, sort_bytes),
        after=(index_bytes, 8, index_bytes, _SCAN_BYTES),
        later=(index_bytes, 8, rows * 8, rows * 8, 8, parts * 8, sums_bytes),
    )


# -- writing at indices -------------------------------------------------------------------------------------------


def _put(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """Values are added in the order of their indices: these, sorted, with the order, and the memory of the sort.

    Source: index_put_with_sort_kernel in aten/src/ATen/native/cuda/Indexing.cu. Exact for 8,192 to two million indices.
    """
    if not argument(args, kwargs, 3, "accumulate", False):
        return None
    given = [index.shape for index in args[1] if index is not None]
    count = math.prod(torch.broadcast_shapes(*given)) if given else 0
    index_bytes = count * _INDEX_BYTES
    return Spaces("adding at indices", after=(index_bytes,) * 4 + (_sort_bytes(count),)) if count else None


def _sort_bytes(count: int) -> int:
    """Return the memory of a sort of indices with their positions."""
    return 2 * count * _INDEX_BYTES + _SORT_TILE_BYTES * -(-count // _SORT_TILE) + _SORT_FIXED_BYTES


def _scatter_at_mask(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """A running count of the mask's entries. Source: masked_scatter_cuda in aten/src/ATen/native/cuda/Indexing.cu."""
    return Spaces("masked_scatter", before=(max(args[0].numel(), args[1].numel()) * _INDEX_BYTES,))


def _mean_at_indices(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """Counts for a mean: one per entry of the result, to which ones of the values' shape are added.

    Source: native/cuda/Indexing.cu and native/TensorAdvancedIndexing.cpp.
    """
    if argument(args, kwargs, 4, "reduce") != "mean":
        return None
    return Spaces("counts of a mean", after=(bytes_of(args[0]), bytes_of(args[3])))


# -- order --------------------------------------------------------------------------------------------------------

_FEW_ROWS_SORTED, _SHORT_ROW = 128, 4096
_RADIX_BYTES = 800_000
_ONE_PASS_BYTES = 1
"""Values of this size are sorted in one pass, without a second buffer."""


def _order(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """What a sort of long rows takes beside its result; rows up to 4,096 values need nothing.

    Source: aten/src/ATen/native/cuda/Sort.cpp. The sizes are fitted: within 3 % for one row of one to five million
    values with 2 to 8 bytes each, and within 4 % for more rows with 1.6 to 10 million values.
    """
    tensor = args[0]
    rows = _rows(tensor, kwargs.get("dim", next((one for one in args[1:] if type(one) is int), -1)))
    if rows is None or rows[1] <= _SHORT_ROW:
        return None
    return Spaces("sort", before=_order_of(rows, tensor.element_size()))


def _order_of(rows: tuple[int, int], element_bytes: int) -> tuple[int, ...]:
    """Return the bytes that a sort of long rows takes beside its result."""
    count = rows[0] * rows[1]
    if rows[0] == 1:
        return _radix(count, element_bytes)
    if rows[0] < _FEW_ROWS_SORTED:
        return count * 22, count * element_bytes * 5 // 2
    return count * 2 * _INDEX_BYTES, count * element_bytes


def _radix(count: int, element_bytes: int) -> tuple[int, ...]:
    """Return the bytes that a sort of ``count`` values with their positions takes beside its result."""
    scratch_bytes = _SORT_TILE_BYTES * -(-count // _SORT_TILE) + min(_RADIX_BYTES, count)
    buffers_bytes = count * (_INDEX_BYTES + element_bytes) if element_bytes > _ONE_PASS_BYTES else 0
    return count * _INDEX_BYTES, buffers_bytes + scratch_bytes


def _median(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """All values are sorted. Source: aten/src/ATen/native/cuda/Sorting.cpp."""
    count, element_bytes = args[0].numel(), args[0].element_size()
    return Spaces("sort", before=(count * element_bytes, count * _INDEX_BYTES, *_radix(count, element_bytes)))


def _rows(tensor: torch.Tensor, dim: int) -> tuple[int, int] | None:
    """Return the number of rows along a dimension, and their length; None without elements."""
    if not tensor.dim() or not tensor.numel():
        return None
    length = tensor.shape[dim]
    return tensor.numel() // length, length


def _shuffle(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """Random keys, the numbers, and a sort of both. Source: aten/src/ATen/native/cuda/TensorFactories.cu."""
    count = args[0]
    return Spaces("randperm", before=(count * _INDEX_BYTES, count * _INDEX_BYTES, *_radix(count, _INDEX_BYTES)))


def _draw(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """Random numbers for each weight; with replacement, the weights' sums. Source: native/cuda/MultinomialKernel.cu."""
    replaced = argument(args, kwargs, 2, "replacement", False) and args[1] > 1
    if replaced:
        return Spaces("multinomial", before=(bytes_of(args[0]),) * 3)
    rows = _rows(args[0], -1) or (0, 0)
    return Spaces("multinomial", before=(bytes_of(args[0]), *_largest_of(rows, args[0].element_size(), device)))


# Rows from which, for their length, several thread blocks share a row: should_use_multiblock in TensorTopK.cu.
_SHARED_ROWS = ((20, 20_000), (40, 10_000), (80, 8000), (199, 5000), (799, 3000), (4000, 800), (math.inf, 400))
_BLOCK_THREADS, _BLOCKS_PER_PROCESSOR, _LEAST_VALUES, _MOST_VALUES = 256, 6, 4, 64
_DIGITS = 256


def _largest(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """Counts of digits, if several thread blocks share a row, and a sort of the result, with its values and order.

    Source: aten/src/ATen/native/cuda/TensorTopK.cu and TensorTopK.cpp. Up to 4,096 values are sorted in place.
    """
    rows = _rows(args[0], argument(args, kwargs, 2, "dim", -1))
    element_bytes = args[0].element_size()
    held = () if rows is None else _largest_of(rows, element_bytes, device)
    sorted_ = ()
    if rows is not None and args[1] > _SHORT_ROW and argument(args, kwargs, 4, "sorted", True):
        count = rows[0] * args[1]
        sorted_ = (count * element_bytes, count * _INDEX_BYTES, *_order_of((rows[0], args[1]), element_bytes))
    return Spaces("topk", after=held, later=sorted_) if held or sorted_ else None


def _largest_of(rows: tuple[int, int], element_bytes: int, device: SimulatedDevice) -> tuple[int, ...]:
    count, length = rows
    if length < next(least for most, least in _SHARED_ROWS if count <= most):
        return ()

    def sizes(gpu: Traits) -> tuple[int, ...]:
        threads = gpu.multiprocessors * _BLOCKS_PER_PROCESSOR * _BLOCK_THREADS
        values = max(_LEAST_VALUES, min(-(-count * length // threads), _MOST_VALUES)) * _BLOCK_THREADS
        blocks = count * -(-length // values)
        return blocks * (2 * _DIGITS + 8), count * (4 * _DIGITS + 16 + element_bytes)

    return device.sizing.many(sizes)


def _pairs_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """The gradients of each point's pairs, which are added. Source: aten/src/ATen/native/cuda/DistanceKernel.cu."""
    points = args[1]
    return Spaces("pdist", after=(max(points.shape[0] - 1, 0) * bytes_of(points),))


def _unique(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """Sorted values, with their places if these are asked for. Source: aten/src/ATen/native/cuda/UniqueCub.cu."""
    count, element_bytes = args[0].numel(), args[0].element_size()
    values_bytes, places_bytes = count * element_bytes, count * _INDEX_BYTES
    if argument(args, kwargs, 2, "return_inverse", False):
        numbers = (max(places_bytes + count * _NUMBER_BYTES - values_bytes, 0),)  # before the result has its memory
        return Spaces(
            "unique", (values_bytes, places_bytes), numbers, (places_bytes, *_radix(count, element_bytes)[1:])
        )
    buffer_bytes = values_bytes + _SORT_TILE_BYTES * -(-count // _SORT_TILE)
    return Spaces("unique", (values_bytes,), first=(buffer_bytes,) if element_bytes > _ONE_PASS_BYTES else ())


def _runs(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """As of ``unique``, but nothing is sorted."""
    data = args[0]
    if argument(args, kwargs, 3, "dim") is not None or not argument(args, kwargs, 1, "return_inverse", False):
        return None
    return Spaces("unique", after=(max(data.numel() * (_NUMBER_BYTES - data.element_size()), 0),))


def _nonzeros(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """A mask, and its copy in the dtype of the sum. Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp."""
    count = args[0].numel()
    return Spaces("count_nonzero", before=(count, count * _INDEX_BYTES))


RULES: dict[Any, Rule] = {
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _runs,
    aten._pdist_backward.default: _pairs_backward,
    aten.count_nonzero.dim_IntList: _nonzeros,
    aten.count_nonzero.default: _nonzeros,
    aten.index_reduce.default: _mean_at_indices,
    aten.scatter_reduce.two: _mean_at_indices,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten._embedding_bag_backward.default: _bag_backward,
    aten.index_put.default: _put,
    aten.index_put_.default: _put,
    aten._index_put_impl_.default: _put,
    aten._unsafe_index_put.default: _put,
    aten.masked_scatter.default: _scatter_at_mask,
    aten.masked_scatter_.default: _scatter_at_mask,
    aten.sort.default: _order,
    aten.sort.stable: _order,
    aten.argsort.default: _order,
    aten.median.default: _median,
    aten.randperm.default: _shuffle,
    aten.randperm.generator: _shuffle,
    aten.multinomial.default: _draw,
    aten.topk.default: _largest,
}
