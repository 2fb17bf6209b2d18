"""How far estimates were off on a GPU: the factors from an estimate to the ends of its interval."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

LEAST_EXCESS = 0.005
"""Minimum relative width of the interval. The rules were written with knowledge of the same measurements."""
_ROUNDING = 1e-9
"""Rounding error of products such as 20 x 0.95."""


@cache
def _kept_errors() -> dict[str, dict[str, float]]:
    folder = files("gpuledger.simulate.estimate")
    texts = [folder.joinpath(name).read_text(encoding="utf-8") for name in ("errors.toml", "errors_elsewhere.toml")]
    return tomllib.loads("\n".join(texts))


def grid_errors(kind: str) -> dict[str, float]:
    """Return training (``MODEL-…``) -> measured over estimated process bytes, for the benchmark trainings of a kind.

    Source: ``bench/estimate/estimate_grid.py`` on an H200, stored in ``errors.toml``. For other GPUs,
    ``bench/estimate/strangers.py`` on RTX 3060 and RTX 4060, stored in ``errors_elsewhere.toml``.
    """
    return dict(_kept_errors()[kind])


def program_errors(kind: str) -> dict[str, float]:
    """Return program -> measured over estimated process bytes, for programs that were estimated before they ran.

    Source: ``bench/estimate/blind_programs.py`` on an H200, stored in ``errors.toml``.
    """
    return dict(_kept_errors().get(f"{kind}_programs", {}))


def category_spread() -> dict[str, float]:
    """Return category -> error relative to the allocated peak that 19 of 20 benchmark trainings did not exceed."""
    return dict(_kept_errors()["by_category"])


def later_growth_errors() -> dict[str, float]:
    """Return program -> error of its estimate over the growth of reserved memory after the third simulated step.

    The steps of these programs differ, not all of them were simulated, and memory grew. An error below zero counts as
    none.

    Source: ``bench/estimate/blind_programs.py`` on an H200, stored in ``errors.toml``.
    """
    return dict(_kept_errors()["later_growth"])


@cache
def compiled_errors() -> dict[str, float]:
    """Return training -> bytes that its estimate is too high, relative to those of :data:`CHANGING`."""
    text = files("gpuledger.simulate.estimate").joinpath("compiled_errors.toml").read_text(encoding="utf-8")
    return {
        name: (one["estimated_bytes"] - one["compiled_bytes"]) / one["changing_bytes"]
        for name, one in tomllib.loads(text).items()
    }


def upper_factor(level: float, kind: str) -> float:
    """Return the factor from an estimate to its upper bound: the true value is below it with probability ``level``."""
    return max(excess_factor(errors, level) for errors in _error_sets(kind))


def lower_factor(level: float, kind: str) -> float:
    """Return the factor from the lower bound to its estimate: the true value is above it with probability ``level``."""
    inverse = ({name: 1.0 / ratio for name, ratio in errors.items()} for errors in _error_sets(kind))
    return max(excess_factor(errors, level) for errors in inverse)


def _error_sets(kind: str) -> tuple[dict[str, float], ...]:
    """Return the errors of the benchmark trainings, and those with programs. Programs never make an interval narrower.

    Programs are estimated well if they are like those that the rules were made with, and the next one may not be.
    """
    trainings = grid_errors(kind)
    return trainings, trainings | program_errors(kind)


def excess_factor(errors: Mapping[str, float], level: float) -> float:
    """Return the factor that the error of a new model, not among ``errors``, stays below with probability ``level``.

    A user's program is a new model, and the trainings of one model have similar errors. So each model counts once, with
    its worst training. If models are exchangeable, the error of the next one is below the ceil((n + 1) level)-th of n.
    If n models are too few for a level, the tail is extended beyond the largest error by :func:`tail_excess`.

    Args:
        errors: Measured over estimated bytes by training, ``MODEL-…``; at least one.
        level: Between 0 and 1.
    """
    worst = sorted(worst_by_model(errors).values())
    rank = math.ceil((len(worst) + 1) * level - _ROUNDING)
    factor = worst[rank - 1] if rank <= len(worst) else max(worst[-1], 1.0 + tail_excess(worst, level))
    return max(factor, 1.0 + LEAST_EXCESS)


def worst_by_model(errors: Mapping[str, float]) -> dict[str, float]:
    """Return model -> its largest ratio of measured to estimated bytes."""
    worst: dict[str, float] = {}
    for training, ratio in errors.items():
        model = training.partition("-")[0]
        worst[model] = max(ratio, worst.get(model, ratio))
    return worst


def tail_excess(ratios: Sequence[float], level: float) -> float:
    """Return the excess above 1 that the next of ``ratios`` has with probability ``1 - level`` at most.

    0 if none of them is above 1. With m of n above 1, the next one is with probability (m + 1) / (n + 1) at most.
    Excesses are assumed to be exponential, the usual distribution above a threshold. Then the next excess over the sum
    of m is above x with probability (1 + x) ** -m. This holds for any mean, and includes the error of estimating it
    from few values.
    """
    above = [ratio - 1.0 for ratio in ratios if ratio > 1.0]
    if not above:
        return 0.0
    chance = (len(above) + 1) / (len(ratios) + 1)
    return max(0.0, sum(above) * float((chance / (1.0 - level)) ** (1 / len(above)) - 1.0))
