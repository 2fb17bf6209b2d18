"""Batch sizes of the program's DataLoaders."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.collect.adapter.program_objects import attributes_of

_SAMPLERS = ("batch_sampler", "_index_sampler")
"""Attributes of a DataLoader and of its iterator: the sampler that makes the batches."""


def batch_sizes_of(loaders: Iterable[object]) -> set[int]:
    """Return the batch sizes of DataLoaders and of iterators of them, as far as they are known."""
    found = set[int]()
    for loader in loaders:
        own = attributes_of(loader)
        holders = (own, *(attributes_of(own.get(name)) for name in _SAMPLERS))
        found.update(size for held in holders if type(size := held.get("batch_size")) is int)
    return found
