"""A Gaussian process over operators: similar shapes have similar times, in particular if the operator is the same.

The covariance of two operators is the sum of a constant, a term for the same family, a term for the same kind, a kernel
of the distance of their features, and a separate kernel within one kind. Far from all measurements, a prediction
approaches the mean of its kind, of its family, or of all. The scales of the features maximize the marginal likelihood
of the examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuledger.analyze.operator_work.formulas import FAMILIES
from gpuledger.ops.predict.features import Features, Floats
from gpuledger.ops.predict.fitting import OnProgress, no_progress, no_scikit_learn

MOST_ROWS = 500
"""Maximum number of rows for fitting the scales, which takes cubic time. More rows change little."""
LEAST_ROWS = 60
"""Families with fewer rows are predicted together."""
STEPS = 40
LEAST_SCALE = 0.05
"""Least scale of a feature, so that one that hardly varies is not amplified."""
_ROOT_3 = 3**0.5
_JITTER = 1e-8
_TERMS = ("constant", "family", "kind", "shared")


@dataclass(frozen=True)
class Scales:
    """Natural logarithms of the parameters of the covariance.

    Attributes:
        terms: Standard deviations of :data:`_TERMS`, float64[4].
        own: Standard deviation within one kind, by family.
        noise: Standard deviation of equal operators, by family.
        shared_lengths, own_lengths: Length scale of each feature, float64[features].
    """

    terms: Floats
    own: Floats
    noise: Floats
    shared_lengths: Floats
    own_lengths: Floats

    @property
    def flat(self) -> Floats:
        """Return all of them in one array."""
        return np.concatenate([self.terms, self.own, self.noise, self.shared_lengths, self.own_lengths])

    @classmethod
    def of_flat(cls, flat: Floats) -> Scales:
        """Return the scales in an array that :attr:`flat` gave."""
        families = len(FAMILIES)
        features = (len(flat) - len(_TERMS) - 2 * families) // 2
        edges = np.cumsum([len(_TERMS), families, families, features])
        return cls(*np.split(flat, edges))


def _prior(features: int) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of the prior of the scales."""
    families = len(FAMILIES)
    middle = Scales(
        np.array([-0.7, -0.7, -0.7, -0.3]),
        np.full(families, -0.7),
        np.full(families, -2.5),
        np.full(features, 1.7),
        np.full(features, 1.7),
    )
    spread = Scales(
        np.ones(len(_TERMS)), np.full(families, 0.7), np.ones(families), *(np.full(features, 1.2) for _ in range(2))
    )
    return middle.flat, spread.flat


@dataclass(frozen=True)
class Process:
    """The fitted process. ``rows`` are standardized by ``shift`` and ``scale``; ``target`` has the mean ``centre``."""

    rows: Features
    target: Floats
    centre: float
    shift: Floats
    scale: Floats
    scales: Scales

    def predict(self, features: Features) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the prediction for each operator, float64[n] each.

        Features beyond the measured range are clipped to it: a process cannot extrapolate, but a larger operator is as
        close to its roofline as the largest measured one.
        """
        asked = _standard(features, self.shift, self.scale)
        low, high = self.rows.values.min(axis=0), self.rows.values.max(axis=0)
        asked = replace(asked, values=np.clip(asked.values, low, high))
        middles, deviations = np.empty(len(asked)), np.empty(len(asked))
        for family in np.unique(asked.families):
            some = np.flatnonzero(asked.families == family)
            middles[some], deviations[some] = self._parts[self._part_of[family]].predict(asked[some])
        return self.centre + middles, deviations

    def left_out(self, groups: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return each row's error when predicted without its group, and the predicted standard deviation."""
        misses, deviations = np.empty(len(groups)), np.empty(len(groups))
        for number, part in enumerate(self._parts):
            own = np.array([self._part_of[family] == number for family in self.rows.families[part.places]])
            for group in np.unique(groups[part.places[own]]):
                inside = np.flatnonzero(groups[part.places] == group)
                misses[part.places[inside]], deviations[part.places[inside]] = part.without(inside)
        return misses, deviations

    @cached_property
    def _part_of(self) -> npt.NDArray[np.int64]:
        """Return the part that predicts each family."""
        counts = np.bincount(self.rows.families, minlength=len(FAMILIES))
        numbers = np.cumsum(counts >= LEAST_ROWS) - 1
        return np.where(counts >= LEAST_ROWS, numbers, numbers[-1] + 1)

    @cached_property
    def _parts(self) -> tuple[_Part, ...]:
        """Return a part for each large family, and one for the small ones with some rows of the others."""
        numbers = self._part_of[self.rows.families]
        small = self._part_of.max()
        places = [np.flatnonzero(numbers == number) for number in range(small)]
        others = np.random.default_rng(0).permutation(np.flatnonzero(numbers < small))[:MOST_ROWS]
        places.append(np.sort(np.concatenate([np.flatnonzero(numbers == small), others])))
        return tuple(_Part(self.scales, some, self.rows[some], self.target[some] - self.centre) for some in places)

    def arrays(self, name: str) -> dict[str, Any]:
        """Return what :meth:`of_arrays` reads, by names that begin with ``name``."""
        found = {
            "values": self.rows.values,
            "kinds": self.rows.kinds,
            "families": self.rows.families,
            "target": self.target,
            "centre": np.float64(self.centre),
            "shift": self.shift,
            "scale": self.scale,
            "scales": self.scales.flat,
        }
        return {f"{name}.{field}": value for field, value in found.items()}

    @classmethod
    def of_arrays(cls, name: str, arrays: Mapping[str, Any]) -> Process:
        """Return the process that :meth:`arrays` gave; KeyError if there is none."""
        values, kinds, families, target, centre, shift, scale, scales = (
            arrays[f"{name}.{field}"]
            for field in ("values", "kinds", "families", "target", "centre", "shift", "scale", "scales")
        )
        return cls(
            Features(values, kinds, families),
            target,
            float(centre),
            shift,
            scale,
            Scales.of_flat(np.asarray(scales)),
        )


@dataclass(frozen=True)
class _Part:
    """Rows that are predicted together. All rows at once would take too long (cubic time)."""

    scales: Scales
    places: npt.NDArray[np.int64]
    rows: Features
    target: Floats

    def predict(self, asked: Features) -> tuple[Floats, Floats]:
        """Return mean and standard deviation, relative to the mean of all."""
        covariance = _covariance(self.scales, asked, self.rows)
        terms, families = np.exp(2 * self.scales.terms), asked.families
        own = np.exp(2 * self.scales.own[families]) + np.exp(2 * self.scales.noise[families])
        known = np.einsum("ij,ij->i", covariance @ self._inverse, covariance)
        return covariance @ self._weights, np.sqrt(np.maximum(terms.sum() + own - known, _JITTER))

    def without(self, rows: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return the errors of these rows when predicted from the others, and the predicted standard deviations.

        Source: the inverse covariance's blocks, which is exact and needs no second fit.
        """
        block = np.linalg.inv(self._inverse[np.ix_(rows, rows)])
        return block @ self._weights[rows], np.sqrt(np.diag(block))

    @cached_property
    def _inverse(self) -> Floats:
        covariance = _covariance(self.scales, self.rows, self.rows)
        covariance[np.diag_indices(len(covariance))] += np.exp(2 * self.scales.noise[self.rows.families]) + _JITTER
        return np.asarray(np.linalg.inv(covariance))

    @cached_property
    def _weights(self) -> Floats:
        return np.asarray(self._inverse @ self.target)


def learn_process(
    features: Features, target: Floats, groups: npt.NDArray[np.int64], on_progress: OnProgress = no_progress
) -> Process:
    """Return a process fitted to the examples.

    Args:
        features: Features of the examples.
        target: Their measured values.
        groups: Group of each. The scales are fitted to one row per group, so that they apply between groups.
        on_progress: Called with the share of the steps that are done.

    Raises:
        UsageError: SciPy, which comes with scikit-learn, is not installed.
    """
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        raise no_scikit_learn() from error
    applies = ~np.isnan(features.values)
    counts = np.maximum(applies.sum(axis=0), 1)
    shift = np.where(applies, features.values, 0.0).sum(axis=0) / counts
    spread = np.sqrt(np.where(applies, (features.values - shift) ** 2, 0.0).sum(axis=0) / counts)
    scale = np.maximum(spread, LEAST_SCALE)
    rows, centre = _standard(features, shift, scale), float(target.mean())
    some = _one_of_each(groups)[:MOST_ROWS]
    middle, width = _prior(features.values.shape[1])

    def unlikeliness(flat: Floats) -> tuple[float, Floats]:
        away = (flat - middle) / width
        cost, slope = _negative_log_likelihood(Scales.of_flat(flat), rows[some], target[some] - centre)
        return cost + 0.5 * float(away @ away), slope + away / width

    steps = count(1)
    found = minimize(
        unlikeliness,
        middle,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": STEPS},
        callback=lambda _flat: on_progress(next(steps) / STEPS),
    )
    return Process(rows, target, centre, shift, scale, Scales.of_flat(found.x))


def _one_of_each(groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return one row of each group, shuffled."""
    order = np.random.default_rng(0).permutation(len(groups))
    _, first = np.unique(groups[order], return_index=True)
    return np.asarray(order[np.sort(first)])


def _standard(features: Features, shift: Floats, scale: Floats) -> Features:
    """Return standardized features; 0 if a feature does not apply."""
    values = np.where(np.isnan(features.values), 0.0, (features.values - shift) / scale)
    return Features(values, features.kinds, features.families)


def _distance(left: Floats, right: Floats) -> Floats:
    squares = (left * left).sum(axis=1)[:, None] + (right * right).sum(axis=1)[None] - 2 * left @ right.T
    return np.asarray(np.sqrt(np.maximum(squares, 1e-12)))


@dataclass(frozen=True)
class _Parts:
    """The covariance's terms, with values over lengths and exponentials, which their gradients need."""

    same_family: npt.NDArray[np.bool_]
    same_kind: npt.NDArray[np.bool_]
    shared: Floats
    own: Floats
    shared_fall: Floats
    own_fall: Floats
    shared_values: Floats
    own_values: Floats


def _parts(scales: Scales, left: Features, right: Features) -> _Parts:
    """Return the terms between two sets of rows. The kernels are Matérn 3/2."""
    same_kind = left.kinds[:, None] == right.kinds[None]
    near = []
    for lengths in (scales.shared_lengths, scales.own_lengths):
        over = np.exp(-lengths)
        distance = _ROOT_3 * _distance(left.values * over, right.values * over)
        near.append((1 + distance, np.exp(-distance), left.values * over))
    (shared_rise, shared_fall, shared_values), (own_rise, own_fall, own_values) = near
    shared_fall *= np.exp(2 * scales.terms[3])
    own_fall *= np.exp(2 * scales.own[left.families])[:, None] * same_kind
    return _Parts(
        left.families[:, None] == right.families[None],
        same_kind,
        shared_rise * shared_fall,
        own_rise * own_fall,
        shared_fall,
        own_fall,
        shared_values,
        own_values,
    )


def _covariance(scales: Scales, left: Features, right: Features) -> Floats:
    return _added(scales, _parts(scales, left, right))


def _added(scales: Scales, parts: _Parts) -> Floats:
    constant, family, kind, _ = np.exp(2 * scales.terms)
    return np.asarray(constant + family * parts.same_family + kind * parts.same_kind + parts.shared + parts.own)


def _negative_log_likelihood(scales: Scales, rows: Features, target: Floats) -> tuple[float, Floats]:
    """Return the negative log marginal likelihood, up to a constant, and its gradient by the scales."""
    parts = _parts(scales, rows, rows)
    noise = np.exp(2 * scales.noise[rows.families])
    covariance = _added(scales, parts)
    covariance[np.diag_indices(len(target))] += noise + _JITTER
    found = _factor_and_inverse(covariance)
    if found is None:  # extreme scales, for which all operators are equal
        return 1e10, np.zeros_like(scales.flat)
    factor, inverse = found
    weights = inverse @ target
    cost = 0.5 * float(target @ weights) + float(np.log(np.diag(factor)).sum())
    pull = np.outer(weights, weights) - inverse
    constant, family, kind, _ = np.exp(2 * scales.terms)
    terms = [constant * pull.sum(), family * pull[parts.same_family].sum(), kind * pull[parts.same_kind].sum()]
    slope = Scales(
        -np.array([*terms, (pull * parts.shared).sum()]),
        -_by_family(rows, (pull * parts.own).sum(axis=1)),
        -_by_family(rows, np.diag(pull) * noise),
        _slope_of_lengths(pull * parts.shared_fall, parts.shared_values),
        _slope_of_lengths(pull * parts.own_fall, parts.own_values),
    )
    return cost, slope.flat


def _factor_and_inverse(covariance: Floats) -> tuple[Floats, Floats] | None:
    """Return the Cholesky factor and the inverse of a covariance; None if it is not positive definite.

    The inverse is computed from the factor, which takes a third of the time of a general inverse.
    """
    from scipy.linalg.lapack import dpotrf, dpotri

    factor, failed = dpotrf(covariance, lower=1)
    if failed:
        return None
    half, _ = dpotri(factor, lower=1)
    lower = np.tril(half, -1)
    return factor, np.asarray(lower + lower.T + np.diag(np.diag(half)))


def _by_family(rows: Features, values: Floats) -> Floats:
    return np.asarray(np.bincount(rows.families, values, len(FAMILIES)), dtype=np.float64)


def _slope_of_lengths(pull: Floats, values: Floats) -> Floats:
    """Return the gradient by the logarithm of each feature's length, without a matrix per feature."""
    spread = (values * values * pull.sum(axis=1)[:, None]).sum(axis=0)
    return np.asarray(-3 * (spread - (values * (pull @ values)).sum(axis=0)))
