"""Find the dimension of an input that is the batch, from what the program shows beside the input."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod

Shape = tuple[int, ...]

FLATTENED = (2, 3)
"""Numbers of leading dimensions of an input that a model can flatten into the first one of its output."""


def is_sequence(shape: Shape, *, is_whole: bool) -> bool:
    """Return whether an input can be a batch of sequences, with the batch in the first or in the second dimension."""
    return len(shape) == (2 if is_whole else 3) and shape[0] != shape[1]


def batch_dimension(
    shape: Shape,
    outputs: Collection[Shape],
    *,
    is_whole: bool,
    may_be_second: bool,
    batch_sizes: Collection[int],
) -> int | None:
    """Return the dimension of an input that is the batch; None if it is unknown.

    It is in all outputs, because each sample has one. If two dimensions are, that of a DataLoader's batch size is it.
    Without either, it is the first one, unless the outputs contradict that.

    Args:
        shape: Sizes of the input.
        outputs: Sizes of the tensors that the calls have returned, without scalars.
        is_whole: Whether the input has whole numbers, such as token ids.
        may_be_second: Whether the model has layers that take the batch in the second dimension.
        batch_sizes: Batch sizes of the program's DataLoaders.
    """
    if not is_sequence(shape, is_whole=is_whole):
        return 0 if _may_be_first(shape, outputs) else None
    for found in (_in_all(shape, outputs), [dim for dim in (0, 1) if shape[dim] in batch_sizes]):
        if len(found) == 1:
            return found[0]
    return None if may_be_second or not _may_be_first(shape, outputs) else 0


def _in_all(shape: Shape, outputs: Collection[Shape]) -> list[int]:
    """Return which of the first two dimensions all outputs have among theirs."""
    return [dim for dim in (0, 1) if outputs and all(shape[dim] in sizes[:2] for sizes in outputs)]


def _may_be_first(shape: Shape, outputs: Iterable[Shape]) -> bool:
    """Return whether an output has the first dimension, alone or flattened with others; True without outputs."""
    first = {shape[0], *(prod(shape[:count]) for count in FLATTENED)}
    known = [not first.isdisjoint(sizes[:2]) for sizes in outputs]
    return any(known) or not known


def relates_rows(shape: Shape, others: Collection[Shape], lists: Collection[Shape]) -> bool:
    """Return whether other arguments of a call relate the rows of its input to each other, as the edges of a graph do.

    These rows are no samples: none can be left out.

    Args:
        shape: Sizes of the input, a matrix with a row for each node.
        others: Sizes of the other tensors; an adjacency matrix has as many rows and columns as the input has rows.
        lists: Sizes of the other tensors of whole numbers; a list of edges has two rows, or two columns. Or there is
            a list of the nodes where edges begin, and one of those where they end.
    """
    if len(shape) != 2:
        return False
    ends = [sizes for sizes in lists if len(sizes) == 1]
    are_ends = len(ends) == 2 and ends[0] == ends[1] != shape[:1]
    return are_ends or (shape[0], shape[0]) in others or any(_is_list_of_edges(sizes, shape[0]) for sizes in lists)


def _is_list_of_edges(sizes: Sequence[int], rows: int) -> bool:
    return len(sizes) == 2 and 2 in sizes and rows not in sizes
