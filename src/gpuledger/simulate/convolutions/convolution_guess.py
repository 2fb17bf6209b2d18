"""Workspace size of a convolution: measured for this exact shape, or else predicted by trees fitted to other shapes.

``measured.npz`` is created by tools/fit_convolutions.py from the measurements of bench/estimate/conv_workspaces.py on
an H200. Convolutions with three dimensions have trees of their own, and so have those with groups of several channels:
cuDNN chooses among other algorithms for them.
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

from gpuledger.simulate.convolutions.convolution_rows import PLACE, Row
from gpuledger.simulate.convolutions.convolution_terms import describe, features, sums, twin_of

OPERATIONS = ("forward", "data_gradient", "weight_gradient")
"""Operations, in the numbering of :mod:`.convolution_terms`."""
LEAF = 255
UNKNOWN = -1
_HASH_BYTES = 6
FLAT, VOLUME, GROUPED = KINDS = ("flat", "volume", "grouped")
"""Kinds of convolutions with trees of their own: at most two dimensions, three, and groups of several channels."""
_VOLUME = 3
"""Number of dimensions of a convolution over volumes."""
_VECTOR = 8
"""Channels in half precision that cuDNN reads at once."""
_MOST_OFF = 3.0
"""Upper limit of the distance between two trees' predictions, relative to the bytes of data and result."""


@dataclass(frozen=True)
class Workspace:
    """Workspace of one cuDNN operation in bytes, and whether it was measured for this exact shape."""

    size_bytes: int
    measured: bool


@dataclass(frozen=True)
class DecisionTrees:
    """Decision trees, one after another, each in preorder (node, left subtree, right subtree).

    A node's left child is the next node; ``right`` is the offset of the right child. In a leaf, ``feature`` is
    :data:`LEAF` and ``sum_id`` selects the predicted sum.
    """

    names: tuple[str, ...]
    begins: NDArray[np.int32]
    feature: NDArray[np.uint8]
    threshold: NDArray[np.float32]
    right: NDArray[np.int32]
    sum_id: NDArray[np.uint8]

    def choose(self, numbers: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return, for float32[n, features], the positions in ``names`` of the predicted sums, int64[n, trees]."""
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


def kinds_of(keys: Sequence[Row]) -> NDArray[np.str_]:
    """Return which trees each key has, of :data:`KINDS`. Depthwise convolutions are not grouped here."""
    dims, groups, channels = (np.array([key[PLACE[name]] for key in keys]) for name in ("dims", "groups", "channels"))
    results = np.array([key[PLACE["weight1"]] if key[PLACE["transposed"]] else key[PLACE["weight0"]] for key in keys])
    transposed = np.array([bool(key[PLACE["transposed"]]) for key in keys])
    made_each = np.where(transposed, results, results // np.maximum(groups, 1))
    is_grouped = (groups > 1) & ((channels > groups) | (made_each > 1))
    found: NDArray[np.str_] = np.where(is_grouped, GROUPED, np.where(dims == _VOLUME, VOLUME, FLAT))
    return found


def forest_name(operation: int, kind: str) -> str:
    """Return the name in the file of an operation's trees for a kind of convolutions."""
    return f"{OPERATIONS[operation]}.{kind}"


@cache
def forest_of(operation: int, kind: str) -> DecisionTrees:
    """Return the trees of an operation for a kind of convolutions."""
    kept, name = _kept(), forest_name(operation, kind)
    arrays = {field: kept[f"{name}.{field}"] for field in ("begins", "feature", "threshold", "right", "sum_id")}
    return DecisionTrees(tuple(kept[f"{name}.names"].tolist()), **arrays)


def digest_of(key: Row) -> int:
    """Return the hash of a key in the table."""
    text = np.array(key, dtype="<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BYTES).digest(), "little")


def measured_bytes(key: Row, operation: int) -> int | None:
    """Return the measured bytes for a key; None if it was not measured."""
    kept, digest = _kept(), digest_of(key)
    place = int(np.searchsorted(kept["digests"], np.uint64(digest)))
    if place == len(kept["digests"]) or int(kept["digests"][place]) != digest:
        return None
    size_bytes = int(kept["measured"][place, operation])
    return None if size_bytes == UNKNOWN else size_bytes


def _twin_bytes(key: Row, operation: int) -> int | None:
    """Return the measured bytes of the same shape in the other half-precision dtype; None if these can be others.

    cuDNN often pads 3 channels to 4 in float16 and to 8 in bfloat16. Of the 63 pairs that were measured with at most 4
    channels, 24 % differ in forward, and 40 % in a weight gradient.
    """
    whole = key[PLACE["groups"]] == 1
    made = key[PLACE["weight1" if key[PLACE["transposed"]] else "weight0"]]
    if whole and (key[PLACE["channels"]] % _VECTOR or made % _VECTOR):
        return None
    return measured_bytes(twin_of(key), operation)


@lru_cache(maxsize=4096)
def workspace_of(key: Row, operation: int) -> Workspace:
    """Return an operation's workspace for a key (:func:`.convolution_terms.key_of`)."""
    size_bytes = measured_bytes(key, operation)
    if size_bytes is not None:
        return Workspace(size_bytes, True)
    twin_bytes = _twin_bytes(key, operation)
    return Workspace(guess_bytes(key, operation) if twin_bytes is None else twin_bytes, False)


def workspaces_of(keys: Sequence[Row], operation: int) -> list[Workspace]:
    """Return an operation's workspaces for many keys. Those that were not measured are predicted in one batch."""
    known = [(measured_bytes(key, operation), _twin_bytes(key, operation)) for key in keys]
    unknown = [place for place, (own, twin) in enumerate(known) if own is None and twin is None]
    guessed = dict(zip(unknown, guess_many([keys[place] for place in unknown], operation), strict=True))
    return [
        Workspace(guessed.get(place, twin or 0), False) if own is None else Workspace(own, True)
        for place, (own, twin) in enumerate(known)
    ]


def guess_bytes(key: Row, operation: int) -> int:
    """Return the trees' prediction in bytes."""
    return guess_many([key], operation)[0]


def guess_many(keys: Sequence[Row], operation: int) -> list[int]:
    """Return the prediction for each key: of the trees' answers, the one with the smallest distance to all others."""
    kinds = kinds_of(keys)
    found = [0] * len(keys)
    for kind in np.unique(kinds).tolist():
        places = np.flatnonzero(kinds == kind).tolist()
        answers = _ask([keys[place] for place in places], operation, forest_of(operation, kind))
        for place, size_bytes in zip(places, answers, strict=True):
            found[place] = size_bytes
    return found


def _ask(keys: Sequence[Row], operation: int, forest: DecisionTrees) -> list[int]:
    described = describe(keys)
    said = sums(described, operation)
    table = np.stack([said[name] for name in forest.names], axis=1)
    answers = np.take_along_axis(table, forest.choose(features(described)), axis=1)
    scale = (described["X"] + described["Y"])[:, None, None]
    apart = np.minimum(np.abs(answers[:, :, None] - answers[:, None, :]) / scale, _MOST_OFF).sum(axis=2)
    return [int(row[place]) for row, place in zip(answers, apart.argmin(axis=1), strict=True)]
