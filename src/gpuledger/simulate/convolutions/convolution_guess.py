"""A convolution's workspace: as measured where this very shape was, else as trees that were fitted to the others say.

``measured.npz`` is made by tools/fit_convolutions.py from what bench/estimate/conv_workspaces.py measured on an H200.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.simulate.convolutions.convolution_rows import Row
from gpuledger.simulate.convolutions.convolution_terms import describe, features, sums, twin_of

OPERATIONS = ("forward", "data_gradient", "weight_gradient")
"""In the order of :mod:`.convolution_terms`'s numbers."""
LEAF = 255
UNKNOWN = -1
_HASH_BYTES = 6
_MOST_OFF = 3.0
"""Trees are held against each other by the bytes they are apart, as a share of data and result, up to this."""


@dataclass(frozen=True)
class Workspace:
    """Bytes one of cuDNN's operations holds, and whether they were measured for this very shape."""

    size_bytes: int
    measured: bool


@dataclass(frozen=True)
class Forest:
    """Trees, one after the other, each node before its left and that before its right.

    A node's left neighbour follows it; ``right`` is how many nodes further the other one is. In a leaf ``feature`` is
    :data:`LEAF` and ``sum_id`` says which sum.
    """

    names: tuple[str, ...]
    begins: NDArray[np.int32]
    feature: NDArray[np.uint8]
    threshold: NDArray[np.float32]
    right: NDArray[np.int32]
    sum_id: NDArray[np.uint8]

    def choose(self, numbers: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return, for float32[n, features], the places in ``names`` of the sums the trees are for, int64[n, trees]."""
        nodes = np.tile(self.begins, (len(numbers), 1)).astype(np.int64)
        rows = np.arange(len(numbers))[:, None]
        while (going := (which := self.feature[nodes]) != LEAF).any():
            left = numbers[rows, np.where(going, which, 0)] <= self.threshold[nodes]
            nodes = np.where(going, nodes + np.where(left, 1, self.right[nodes]), nodes)
        return self.sum_id[nodes].astype(np.int64)


@cache
def _kept() -> dict[str, NDArray[Any]]:
    with files("gpuledger.simulate.convolutions").joinpath("measured.npz").open("rb") as file, np.load(file) as kept:
        return {name: kept[name] for name in kept.files}


@cache
def forest_of(operation: int) -> Forest:
    """Return the trees of an operation."""
    kept, name = _kept(), OPERATIONS[operation]
    arrays = {field: kept[f"{name}.{field}"] for field in ("begins", "feature", "threshold", "right", "sum_id")}
    return Forest(tuple(kept[f"{name}.names"].tolist()), **arrays)


def digest_of(key: Row) -> int:
    """Return the number a key goes by in the table."""
    text = np.array(key, dtype="<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BYTES).digest(), "little")


def measured_bytes(key: Row, operation: int) -> int | None:
    """Return what was measured for a key; None where it was not."""
    kept, digest = _kept(), digest_of(key)
    place = int(np.searchsorted(kept["digests"], np.uint64(digest)))
    if place == len(kept["digests"]) or int(kept["digests"][place]) != digest:
        return None
    size_bytes = int(kept["measured"][place, operation])
    return None if size_bytes == UNKNOWN else size_bytes


@lru_cache(maxsize=4096)
def workspace_of(key: Row, operation: int) -> Workspace:
    """Return what an operation holds for a key (:func:`.convolution_terms.key_of`)."""
    size_bytes = measured_bytes(key, operation)
    if size_bytes is not None:
        return Workspace(size_bytes, True)
    twin_bytes = measured_bytes(twin_of(key), operation)
    return Workspace(guess_bytes(key, operation) if twin_bytes is None else twin_bytes, False)


def workspaces_of(keys: Sequence[Row], operation: int) -> list[Workspace]:
    """Return what an operation holds for many keys: those that were not measured are guessed at once."""
    known = [(measured_bytes(key, operation), measured_bytes(twin_of(key), operation)) for key in keys]
    unknown = [place for place, (own, twin) in enumerate(known) if own is None and twin is None]
    guessed = dict(zip(unknown, guess_many([keys[place] for place in unknown], operation), strict=True))
    return [
        Workspace(guessed.get(place, twin or 0), False) if own is None else Workspace(own, True)
        for place, (own, twin) in enumerate(known)
    ]


def guess_bytes(key: Row, operation: int) -> int:
    """Return what the trees say."""
    return guess_many([key], operation)[0]


def guess_many(keys: Sequence[Row], operation: int) -> list[int]:
    """Return what the trees say for each key: of their answers, the one that is least far from all others."""
    if not keys:
        return []
    described, forest = describe(keys), forest_of(operation)
    said = sums(described, operation)
    table = np.stack([said[name] for name in forest.names], axis=1)
    answers = np.take_along_axis(table, forest.choose(features(described)), axis=1)
    scale = (described["X"] + described["Y"])[:, None, None]
    apart = np.minimum(np.abs(answers[:, :, None] - answers[:, None, :]) / scale, _MOST_OFF).sum(axis=2)
    return [int(row[place]) for row, place in zip(answers, apart.argmin(axis=1), strict=True)]
