"""Boosted trees as arrays: fitted with scikit-learn, stored without pickle, and evaluated with numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuledger.errors import GpuLedgerError
from gpuledger.ops.predict.fitting import no_scikit_learn

Floats = npt.NDArray[np.float64]

AT_ONCE = 512
"""Rows that are evaluated together, so that they fit the cache."""
TOLERANCE = 1e-6
FORESTS, ROUNDS, LEAVES = 2, 150, 15
"""Number of forests, boosting rounds of each, and leaves of a tree."""
SEEN_FRAC = 0.3
"""Share of the features available to a split."""
DRAWN = 3.0
"""Weight of the overall mean in a kind's level, in examples."""
_FIELDS = ("value", "feature", "threshold", "left", "right", "missing_left", "is_leaf")


@dataclass(frozen=True)
class Forest:
    """Trees with a sum that is added to ``baseline``. Every array is [trees, nodes of the largest tree]."""

    baseline: float
    value: Floats
    feature: npt.NDArray[np.int32]
    threshold: Floats
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    missing_left: npt.NDArray[np.bool_]
    is_leaf: npt.NDArray[np.bool_]

    def predict(self, features: Floats) -> Floats:
        """Return one value for each row of ``features``, float64[n, features] with NaN if a feature does not apply."""
        parts = [self._some(features[start : start + AT_ONCE]) for start in range(0, len(features), AT_ONCE)]
        return np.concatenate(parts) if parts else np.empty(0)

    def _some(self, features: Floats) -> Floats:
        trees = np.arange(len(self.value))[None, :]
        rows = np.arange(len(features))[:, None]
        nodes = np.zeros((len(features), len(self.value)), dtype=np.int32)
        while not (ended := self.is_leaf[trees, nodes]).all():
            values = features[rows, self.feature[trees, nodes]]
            goes_left = np.where(
                np.isnan(values), self.missing_left[trees, nodes], values <= self.threshold[trees, nodes]
            )
            following = np.where(goes_left, self.left[trees, nodes], self.right[trees, nodes])
            nodes = np.where(ended, nodes, following)
        return np.asarray(self.baseline + self.value[trees, nodes].sum(axis=1))

    def arrays(self, name: str) -> dict[str, Any]:
        """Return what :meth:`of_arrays` reads, by names that begin with ``name``."""
        found = {f"{name}.{field}": getattr(self, field) for field in _FIELDS}
        return {**found, f"{name}.baseline": np.float64(self.baseline)}

    @classmethod
    def of_arrays(cls, name: str, arrays: Mapping[str, Any]) -> Forest:
        """Return the forest that :meth:`arrays` gave; KeyError where there is none."""
        fields = {field: arrays[f"{name}.{field}"] for field in _FIELDS}
        return cls(float(arrays[f"{name}.baseline"]), **fields)


@dataclass(frozen=True)
class Levels:
    """Mean measurement of each kind of operator, shrunk towards the mean of all for kinds with few examples."""

    kinds: npt.NDArray[np.str_]
    values: Floats
    other: float

    def of(self, kinds: npt.NDArray[np.str_]) -> Floats:
        """Return the level of each operator; the mean of all for a new kind."""
        known = dict(zip(self.kinds.tolist(), self.values.tolist(), strict=True))
        return np.array([known.get(kind, self.other) for kind in kinds.tolist()], dtype=np.float64)


def learn_levels(kinds: npt.NDArray[np.str_], target: Floats, groups: npt.NDArray[np.int64]) -> tuple[Levels, Floats]:
    """Return the levels, and each example's level without its own group, so that trees do not see their target."""
    names, places = np.unique(kinds, return_inverse=True)
    other = float(target.mean())
    sums, counts = np.bincount(places, target) + DRAWN * other, np.bincount(places) + DRAWN
    _, parts = np.unique(np.stack([places, groups]), axis=1, return_inverse=True)
    own_sums, own_counts = np.bincount(parts.ravel(), target), np.bincount(parts.ravel())
    own = parts.ravel()
    without = (sums[places] - own_sums[own]) / (counts[places] - own_counts[own])
    return Levels(names, np.asarray(sums / counts), other), np.asarray(without)


def learn(features: Floats, target: Floats) -> Forest:
    """Return a forest for ``target``: the mean of several with different random features.

    Histogram gradient boosting needs no tuning on a few thousand rows and supports NaN. Its trees are small enough to
    be stored as arrays.

    Raises:
        UsageError: scikit-learn is not installed.
        GpuLedgerError: this version of scikit-learn stores its trees in an unknown form.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError as error:
        raise no_scikit_learn() from error
    features = np.where(np.isnan(features).all(axis=0), 0.0, features)  # it cannot bin a feature that is always NaN
    models = [
        HistGradientBoostingRegressor(
            max_iter=ROUNDS,
            max_leaf_nodes=LEAVES,
            learning_rate=0.08,
            max_features=SEEN_FRAC,
            min_samples_leaf=5,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=seed,
        )
        for seed in range(FORESTS)
    ]
    few = features[:50]
    for model in models:
        model.fit(features, target)
    expected = np.mean([model.predict(few) for model in models], axis=0)
    try:
        forest = _forest_of(models)
    except (AttributeError, KeyError, ValueError, IndexError) as error:
        raise GpuLedgerError(
            "this version of scikit-learn is not supported", hint="pip install 'scikit-learn>=1.4,<1.10'"
        ) from error
    if not np.allclose(forest.predict(few), expected, atol=TOLERANCE):
        raise GpuLedgerError(
            "this version of scikit-learn is not supported", hint="pip install 'scikit-learn>=1.4,<1.10'"
        )
    return forest


def _forest_of(models: Sequence[Any]) -> Forest:
    trees = [stage[0].nodes for model in models for stage in model._predictors]
    most = max(len(nodes) for nodes in trees)

    def table(name: str, kind: Any) -> npt.NDArray[Any]:
        filled = np.zeros((len(trees), most), dtype=kind)
        for place, nodes in enumerate(trees):
            filled[place, : len(nodes)] = nodes[name]
        return filled

    return Forest(
        baseline=float(np.mean([np.ravel(model._baseline_prediction)[0] for model in models])),
        value=table("value", np.float64) / len(models),
        feature=table("feature_idx", np.int32),
        threshold=table("num_threshold", np.float64),
        left=table("left", np.int32),
        right=table("right", np.int32),
        missing_left=table("missing_go_to_left", np.bool_),
        is_leaf=table("is_leaf", np.bool_),
    )
