"""Assign a category to every block: by its observed identity, or else by the first lifetime rule that matches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.accounts import CATEGORIES, FATES, IDENTITY_CATEGORY, LIFETIME_RULES, PHASES, Rule

NO_IDENTITY = -1
_FLAGS = (
    *("recomputed", "communicating", "reducing", "workspace_sized", "same_module", "freed_in_backward", "of_update"),
    "carried",
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
    carried: NDArray[np.bool_]


def find_carried(
    owner: tuple[NDArray[np.int64], NDArray[np.int64]],
    step: NDArray[np.int64],
    fate: NDArray[np.int8],
    freed_in: NDArray[np.int64],
    candidates: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return which blocks calls of modules keep for later calls.

    They are replaced in a later call, or are never freed although there was one. Of an owner of such blocks, those of
    the last call are of this kind, too: it is not known what would have become of them.

    Args:
        owner: Module and Python stack of each block; -1 for none.
        step: Its step.
        fate: Its end; see FATES.
        freed_in: The phase in which it was freed; negative if it was not.
        candidates: Which blocks were allocated in a call without gradients, and not returned by it.
    """
    module_id, stack_id = owner
    candidates = candidates & (module_id >= 0)
    last_step = step[candidates].max(initial=0)
    replaced = (fate == FATES.index("later")) & (freed_in == PHASES.index("evaluation"))
    stayed = np.isin(fate, [FATES.index("kept"), FATES.index("alive")])
    known = candidates & (replaced | (stayed & (step < last_step)))
    place = module_id * (stack_id.max(initial=0) + 2) + stack_id + 1
    carried: NDArray[np.bool_] = known | (candidates & stayed & np.isin(place, place[known]))
    return carried


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
