"""Boosted trees as arrays: learned by scikit-learn, kept without pickle, and read by numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuledger.errors import GpuLedgerError, UsageError

Floats = npt.NDArray[np.float64]

AT_ONCE = 512
"""Rows that go through all trees together: more would not fit the cache."""
TOLERANCE = 1e-6
MANY = 1_000
"""Rows from which larger trees are worth their time."""
ROUNDS = 100
"""Trees that correct one another; more of them change a prediction by less than its error."""
_FIELDS = ("value", "feature", "threshold", "left", "right", "missing_left", "is_leaf")


@dataclass(frozen=True)
class Forest:
    """Trees whose sum is added to ``baseline``. Every array is [trees, nodes of the largest tree]."""

    baseline: float
    value: Floats
    feature: npt.NDArray[np.int32]
    threshold: Floats
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    missing_left: npt.NDArray[np.bool_]
    is_leaf: npt.NDArray[np.bool_]

    def predict(self, features: Floats) -> Floats:
        """Return one value for each row of ``features``, float64[n, features] with NaN for what does not apply."""
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


def learn(features: Floats, target: Floats, quantile: float | None) -> Forest:
    """Return a forest for the mean of ``target``, or for a quantile of it.

    Gradient boosting in histograms, because it is the most exact of what needs no tuning on a few thousand rows of
    numbers, takes NaN as it comes, and learns quantiles; its trees are small enough to be kept as plain arrays.

    Raises:
        UsageError: scikit-learn is not installed.
        GpuLedgerError: this scikit-learn keeps its trees in a way that is not known here.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise UsageError("ops: scikit-learn is not installed", hint="pip install 'gpuledger[predict]'") from error
    loss = {"loss": "squared_error"} if quantile is None else {"loss": "quantile", "quantile": quantile}
    features = np.where(np.isnan(features).all(axis=0), 0.0, features)  # of what never applies it makes no bins
    least = int(np.clip(len(target) // 40, 2, 20))
    model = HistGradientBoostingRegressor(
        **loss,
        max_iter=ROUNDS,
        max_leaf_nodes=15 if len(target) < MANY else 31,
        learning_rate=0.15,
        min_samples_leaf=least,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    )
    with threadpool_limits(1, "openmp"):  # a few thousand rows are learned before threads have found each other
        model.fit(features, target)
    try:
        forest = _forest_of(model)
    except (AttributeError, KeyError, ValueError, IndexError) as error:
        raise GpuLedgerError(
            "ops: this scikit-learn keeps its trees in another way", hint="scikit-learn 1.4 to 1.9"
        ) from error
    few = features[:50]
    if not np.allclose(forest.predict(few), model.predict(few), atol=TOLERANCE):
        raise GpuLedgerError("ops: this scikit-learn reads its trees in another way", hint="scikit-learn 1.4 to 1.9")
    return forest


def _forest_of(model: Any) -> Forest:
    trees = [stage[0].nodes for stage in model._predictors]
    most = max(len(nodes) for nodes in trees)

    def table(name: str, kind: Any) -> npt.NDArray[Any]:
        filled = np.zeros((len(trees), most), dtype=kind)
        for place, nodes in enumerate(trees):
            filled[place, : len(nodes)] = nodes[name]
        return filled

    return Forest(
        baseline=float(np.asarray(model._baseline_prediction).ravel()[0]),
        value=table("value", np.float64),
        feature=table("feature_idx", np.int32),
        threshold=table("num_threshold", np.float64),
        left=table("left", np.int32),
        right=table("right", np.int32),
        missing_left=table("missing_go_to_left", np.bool_),
        is_leaf=table("is_leaf", np.bool_),
    )
