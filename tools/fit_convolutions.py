"""Makes src/gpuledger/simulate/convolutions/measured.npz from bench/estimate/conv_workspaces.py's measurements.

The file holds what was measured for models' convolutions, by a digest of the shape, and for all other shapes a few
trees an operation (scikit-learn's, needed here alone), written as plain arrays. Each leaf names a sum of terms
(gpuledger.simulate.convolutions). Shapes with three dimensions have trees of their own, and so have those with groups.
The trainings that estimates are judged by have no part in either. ``--judge`` fits without a fifth of the models and of
the drawn shapes and says how far off those are.

Usage: python tools/fit_convolutions.py [--judge OUT.json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.simulate.convolutions import convolution_guess as guess
from gpuledger.simulate.convolutions.convolution_rows import FIRST, LAST, PLACE
from gpuledger.simulate.convolutions.convolution_terms import (
    DATA_GRADIENT,
    FORWARD,
    WEIGHT_GRADIENT,
    describe,
    features,
    key_of,
    sums,
)

ROOT = Path(__file__).parent.parent
FILES = (
    "conv_workspaces",
    "conv_workspaces_3d",
    "conv_workspaces_pointwise",
    "conv_workspaces_nets",
    "conv_workspaces_rare",
)
MEASURED = [ROOT / "tests" / "data" / "h200" / f"{name}.npz" for name in FILES]
OUT = ROOT / "src" / "gpuledger" / "simulate" / "convolutions" / "measured.npz"
TREES, VOLUME_TREES, LEAST_IN_LEAF, FEATURES_A_SPLIT, SEED = 16, 30, 2, 0.6, 0
"""For shapes with three dimensions, the splits of trees are random."""
USUAL_KERNEL = 27
NEAR_ENOUGH = 0.003
"""Of sums within this share of data and result, the one that serves most shapes is taken."""
JUDGES = "held out"
RAN = 0
"""State of a case. Where memory ran out, cuDNN took another algorithm than it otherwise does."""


@dataclass(frozen=True)
class Samples:
    """One operation's measured workspaces: keys, bytes and where each shape comes from."""

    keys: list[tuple[int, ...]]
    size_bytes: NDArray[np.float64]
    sources: NDArray[np.str_]


def main() -> int:
    """Fit and write, or judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    samples = [samples_of(operation) for operation in range(3)]
    if arguments.judge:
        judged = {guess.OPERATIONS[operation]: judge(one, operation) for operation, one in enumerate(samples)}
        arguments.judge.write_text(json.dumps(judged, indent=1) + "\n", encoding="utf-8")
        return 0
    fitted = [without_judges(one) for one in samples]
    arrays: dict[str, Any] = {**table_of(fitted)}
    for operation, one in enumerate(fitted):
        for kind in guess.KINDS:
            arrays |= grow(chosen(one, guess.kinds_of(one.keys) == kind), operation, kind)
    np.savez_compressed(OUT, **arrays)
    print(f"{OUT}: {OUT.stat().st_size:,} bytes, {len(arrays['digests'])} shapes")
    return 0


# -- measurements -------------------------------------------------------------------------------------------------


def segments_of(stream: list[int]) -> list[list[int]]:
    """Return the blocks that were given back, by how many results had been made before each."""
    freed = {-number for number in stream if number < 0}
    found: list[list[int]] = [[]]
    for place, size_bytes in enumerate((number for number in stream if number > 0), 1):
        if place in freed:
            found[-1].append(size_bytes)
        else:
            found.append([])
    return found


def samples_of(operation: int) -> Samples:
    """Return every measured workspace of an operation, each shape once."""
    found: dict[tuple[int, ...], tuple[int, str]] = {}
    for source, row, streams in sorted(itertools.chain(*map(cases_in, MEASURED)), key=lambda case: rank_of(case[0])):
        size_bytes = workspace_in(row, streams, operation)
        if size_bytes is not None:
            found.setdefault(key_of(tuple(row)), (size_bytes, source))
    return Samples(
        list(found),
        np.array([one[0] for one in found.values()], dtype=np.float64),
        np.array([one[1] for one in found.values()]),
    )


def cases_in(place: Path) -> list[tuple[str, list[int], list[list[int]]]]:
    """Return source, row and the first calls' two streams of each case in a file of measurements that had memory."""
    with np.load(place) as kept:
        names, ends = kept["sources"].tolist(), np.cumsum(kept["lengths"]).tolist()
        rows, flat, source = kept["rows"].tolist(), kept["streams"].tolist(), kept["source"].tolist()
        ran = (kept["state"] == RAN).tolist()
    begins = [0, *ends[:-1]]
    return [
        (names[number], row, [flat[begins[n] : ends[n]] for n in (4 * place, 4 * place + 1)])
        for place, (number, row) in enumerate(zip(source, rows, strict=True))
        if ran[place]
    ]


def rank_of(source: str) -> int:
    """Return whose a shape of several sources is: the judges' first, so that it is theirs alone, a drawn one last."""
    return 0 if source.startswith(JUDGES) else 1 + (source == "drawn")


def workspace_in(row: list[int], streams: list[list[int]], operation: int) -> int | None:
    """Return cuDNN's workspace among the blocks of a case: the last beside its result, but for torch's copies."""
    forward_is = DATA_GRADIENT if row[PLACE["transposed"]] else FORWARD
    copies = copies_before(row, operation, forward_is)
    if operation == forward_is:
        return sum(segments_of(streams[0])[1][copies:])
    if operation == WEIGHT_GRADIENT:
        return sum(segments_of(streams[1])[1 + row[PLACE["data_gradient"]]])
    if not row[PLACE["data_gradient"]]:
        return None
    beside = segments_of(streams[1])[1][copies:]
    return sum(beside[:-1] if copies and not is_last(row) else beside)  # the last is a copy for the next result


def is_last(row: list[int]) -> bool:
    """Return whether cuDNN is given channels last."""
    return LAST in (row[PLACE["data_format"]], row[PLACE["weight_format"]])


def copies_before(row: list[int], operation: int, forward_is: int) -> int:
    """Return how many copies torch makes beside the result, before cuDNN's workspace."""
    depthwise = row[PLACE["groups"]] == row[PLACE["channels"]] > 1
    pointwise = max(row[PLACE["kernel0"]], row[PLACE["kernel1"]], row[PLACE["kernel2"]]) == 1
    if operation == WEIGHT_GRADIENT or depthwise:
        return 0
    if is_last(row):
        return int(row[PLACE["weight_format"]] != LAST and not pointwise)
    other = row[PLACE["gradient_format"]] != FIRST
    return int(other and operation != forward_is and not row[PLACE["transposed"]])


def without_judges(samples: Samples) -> Samples:
    """Return the samples that are of no training that estimates are judged by."""
    return chosen(samples, ~np.char.startswith(samples.sources, JUDGES))


def chosen(samples: Samples, mask: NDArray[np.bool_]) -> Samples:
    """Return some of the samples."""
    keys = [key for key, wanted in zip(samples.keys, mask, strict=True) if wanted]
    return Samples(keys, samples.size_bytes[mask], samples.sources[mask])


def table_of(samples: list[Samples]) -> dict[str, NDArray[Any]]:
    """Return the catalogue of measured shapes of models, sorted by digest."""
    found: dict[int, list[int]] = {}
    for operation, one in enumerate(samples):
        for key, size_bytes, source in zip(one.keys, one.size_bytes, one.sources, strict=True):
            if source != "drawn":
                found.setdefault(guess.digest_of(key), [guess.UNKNOWN] * 3)[operation] = int(size_bytes)
    digests = sorted(found)
    return {
        "digests": np.array(digests, dtype=np.uint64),
        "measured": np.array([found[digest] for digest in digests], dtype=np.int64),
    }


# -- trees --------------------------------------------------------------------------------------------------------


def targets_of(samples: Samples, operation: int) -> tuple[list[str], NDArray[np.int64], NDArray[np.float64], Any]:
    """Return the sums' names, which one each sample is, what all would be, and data and result's bytes."""
    described = describe(samples.keys)
    said = sums(described, operation)
    names, values = list(said), np.stack(list(said.values()), axis=1)
    scale = described["X"] + described["Y"]
    off = np.abs(values - samples.size_bytes[:, None]) / scale[:, None]
    near = off <= np.maximum(off.min(axis=1), NEAR_ENOUGH)[:, None] + 1e-9
    target = np.full(len(scale), -1)
    while (left := target < 0).any():
        best = int(near[left].sum(axis=0).argmax())
        target[left & near[:, best]] = best
    return names, target, values, scale


def grow(samples: Samples, operation: int, kind: str) -> dict[str, NDArray[Any]]:
    """Return an operation's trees for a kind of shapes as arrays."""
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

    names, target, _, _ = targets_of(samples, operation)
    is_random = kind == guess.VOLUME
    grower, trees = (ExtraTreesClassifier, VOLUME_TREES) if is_random else (RandomForestClassifier, TREES)
    forest = grower(trees, min_samples_leaf=LEAST_IN_LEAF, max_features=FEATURES_A_SPLIT, random_state=SEED)
    forest.fit(features(describe(samples.keys)), target)
    begins: list[int] = []
    parts: list[Any] = []
    for tree in (one.tree_ for one in forest.estimators_):
        begins.append(sum(len(part[0]) for part in parts))
        leaf = tree.children_left < 0
        places = np.arange(tree.node_count)
        feature = np.where(leaf, guess.LEAF, tree.feature).astype(np.uint8)
        right = np.where(leaf, 0, tree.children_right - places).astype(np.int32)
        sum_id = np.where(leaf, forest.classes_[tree.value[:, 0].argmax(axis=1)], 0).astype(np.uint8)
        threshold = np.where(leaf, 0, tree.threshold).astype(np.float32)
        parts.append((feature, rounded(threshold) if is_random else threshold, right, sum_id))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    name = guess.forest_name(operation, kind)
    fields = dict(zip(("feature", "threshold", "right", "sum_id"), columns, strict=True))
    fields |= {"begins": np.array(begins, dtype=np.int32), "names": np.array(names)}
    return {f"{name}.{field}": values for field, values in fields.items()}


def rounded(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return numbers with a mantissa of 10 bits. Random thresholds of 23 bits double the size of the file."""
    return (numbers.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def judge(samples: Samples, operation: int) -> dict[str, Any]:
    """Return how far off shapes are that had no part in the fit: other models', drawn ones, and the judges'."""
    dice = np.random.default_rng(3)
    models = np.unique(samples.sources[np.char.startswith(samples.sources, "model")])
    left_out = np.isin(samples.sources, dice.permutation(models)[: len(models) // 5])
    drawn = samples.sources == "drawn"
    aside = left_out | (drawn & (dice.random(len(drawn)) < 0.2))
    judges = np.char.startswith(samples.sources, JUDGES)
    kinds = guess.kinds_of(samples.keys)
    forests = {
        kind: forest_in(grow(chosen(samples, ~aside & ~judges & (kinds == kind)), operation, kind), operation, kind)
        for kind in guess.KINDS
    }
    guess.forest_of = lambda _operation, kind: forests[kind]  # type: ignore[assignment]
    described = describe(samples.keys)
    wide, whole = described["dims"] == 3, described["groups"] == 1
    usual = whole & (described["kernel"] <= USUAL_KERNEL)
    groups = {"other models": aside & ~drawn, "drawn": aside & drawn & ~wide, "drawn, 3-D": aside & drawn & wide}
    groups["drawn, 3-D, no groups, at most 3 x 3 x 3"] = groups["drawn, 3-D"] & usual
    groups["drawn, 3-D, no groups, one element"] = groups["drawn, 3-D"] & usual & (described["kernel"] == 1)
    groups["drawn, 3-D, no groups, more than 3 x 3 x 3"] = groups["drawn, 3-D"] & whole & ~usual
    groups["drawn, groups of several channels"] = aside & drawn & (kinds == guess.GROUPED)
    groups["drawn, 1-D"] = aside & drawn & (described["dims"] == 1)
    return {group: errors_of(chosen(samples, mask), operation) for group, mask in (groups | {"judges": judges}).items()}


def forest_in(arrays: dict[str, NDArray[Any]], operation: int, kind: str) -> guess.DecisionTrees:
    """Return trees that were just grown."""
    name = guess.forest_name(operation, kind)
    fields = {field: arrays[f"{name}.{field}"] for field in ("begins", "feature", "threshold", "right", "sum_id")}
    return guess.DecisionTrees(tuple(arrays[f"{name}.names"].tolist()), **fields)


def errors_of(samples: Samples, operation: int) -> dict[str, float]:
    """Return errors as shares of the bytes of data and result."""
    described = describe(samples.keys)
    scale = described["X"] + described["Y"]
    off = np.array(guess.guess_many(samples.keys, operation)) - samples.size_bytes
    found = {
        "shapes": len(scale),
        "workspace_frac": float(samples.size_bytes.sum() / scale.sum()),
        "off_frac": float(np.abs(off).sum() / scale.sum()),
        "bias_frac": float(off.sum() / scale.sum()),
        "within_1_percent_frac": float((np.abs(off) / scale < 0.01).mean()),
    }
    print(guess.OPERATIONS[operation], {key: round(value, 4) for key, value in found.items()}, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
