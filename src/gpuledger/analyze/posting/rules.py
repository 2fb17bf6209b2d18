"""Assign a category to every block: by its observed identity, or else by the first lifetime rule that matches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.accounts import CATEGORIES, FATES, IDENTITY_CATEGORY, LIFETIME_RULES, PHASES, Rule

NO_IDENTITY = -1
_FLAGS = (
    *("recomputed", "communicating", "reducing", "workspace_sized", "same_module", "freed_in_backward", "of_update"),
)


@dataclass(frozen=True)
class BlockFeatures:
    """The inputs of the rules, with one entry per block.

    ``identity``: an ``Identity`` or :data:`NO_IDENTITY`. ``phase``: position in PHASES. ``fate``: position in FATES.
    """

    identity: NDArray[np.int8]
    phase: NDArray[np.int8]
    fate: NDArray[np.int8]
    recomputed: NDArray[np.bool_]
    communicating: NDArray[np.bool_]
    reducing: NDArray[np.bool_]
    workspace_sized: NDArray[np.bool_]
    same_module: NDArray[np.bool_]
    freed_in_backward: NDArray[np.bool_]
    of_update: NDArray[np.bool_]


def categorize(features: BlockFeatures) -> NDArray[np.int8]:
    """Return each block's position in CATEGORIES. Blocks that match no rule are ``other``."""
    other = CATEGORIES.index("other")
    chosen = np.full(features.phase.size, -1, dtype=np.int8)
    for identity, category in IDENTITY_CATEGORY.items():
        chosen[features.identity == identity] = CATEGORIES.index(category)
    # The order of the rules matters: a block gets the category of the first match, and no rule changes an identity.
    for rule in LIFETIME_RULES:
        chosen[(chosen < 0) & _holds(rule, features)] = CATEGORIES.index(rule.category)
    chosen[chosen < 0] = other
    return chosen


def _holds(rule: Rule, features: BlockFeatures) -> NDArray[np.bool_]:
    held: NDArray[np.bool_] = np.isin(features.phase, [PHASES.index(name) for name in rule.phases])
    held &= np.isin(features.fate, [FATES.index(name) for name in rule.fates])
    for name in _FLAGS:
        wanted = getattr(rule, name)
        if wanted is not None:
            held &= getattr(features, name) == wanted
    return held
