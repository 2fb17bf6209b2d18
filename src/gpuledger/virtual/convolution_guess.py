"""A convolution's workspace: as measured where this very shape was, else as trees that were fitted to the others say.

``convolutions.npz`` is made by tools/fit_convolutions.py from what bench/conv_workspaces.py measured on an H200.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.virtual.convolution_rows import Row
from gpuledger.virtual.convolution_terms import describe, features, sums, twin_of

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

    def choose(self, numbers: Any) -> list[str]:
        """Return the sum each tree is for."""
        return [self.names[self.sum_id[self._leaf(int(begin), numbers)]] for begin in self.begins]

    def _leaf(self, node: int, numbers: Any) -> int:
        while (which := self.feature[node]) != LEAF:
            node += 1 if numbers[which] <= self.threshold[node] else int(self.right[node])
        return node


@cache
def _kept() -> dict[str, NDArray[Any]]:
    with files("gpuledger.virtual").joinpath("convolutions.npz").open("rb") as file, np.load(file) as kept:
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


def guess_bytes(key: Row, operation: int) -> int:
    """Return what the trees say: of their answers, the one that is least far from all others."""
    described = describe(key)
    named = forest_of(operation).choose(features(described)[0])
    said = sums(described, operation)
    answers = np.array([said[name][0] for name in named])
    scale = float((described["X"] + described["Y"])[0])
    apart = np.minimum(np.abs(answers[:, None] - answers[None, :]) / scale, _MOST_OFF).sum(axis=1)
    return int(answers[int(apart.argmin())])


def catalogue_size() -> int:
    """Return of how many shapes measurements are kept."""
    return len(_kept()["digests"])
