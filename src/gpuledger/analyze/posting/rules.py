"""Assign a category to every block: by its observed identity, or else by the first lifetime rule that matches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.replay import Replay
from gpuledger.model.accounts import CATEGORIES, FATES, IDENTITY_CATEGORY, LIFETIME_RULES, PHASES, Identity, Rule

NO_IDENTITY = -1
_GRADIENTS = (Identity.GRADIENT, Identity.LEAF_GRADIENT)
_FLAGS = (
    *("recomputed", "communicating", "reducing", "workspace_sized", "same_module", "freed_in_backward", "of_update"),
    *("carried", "added"),
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
    added: NDArray[np.bool_]


def find_added(
    made: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    lives: Replay,
    phase: NDArray[np.int8],
    fate: NDArray[np.int8],
    identity: NDArray[np.int8],
) -> NDArray[np.bool_]:
    """Return which blocks can be gradients that are added to those of an earlier backward pass.

    A module's backward allocates such a block while a gradient of the same size is alive that an earlier pass has
    computed in the module.

    Args:
        made: Event that allocated each block, and the visit and the module in which it did.
        lives: The blocks.
        phase: Phase of each block's allocation.
        fate: How each block ends.
        identity: An ``Identity`` or :data:`NO_IDENTITY`.
    """
    born, visit, module_id = made
    in_module = (phase == PHASES.index("backward")) & (module_id >= 0)
    found = np.zeros(born.size, dtype=bool)
    known: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(in_module & np.isin(identity, _GRADIENTS)).tolist():
        known.setdefault((int(module_id[row]), int(lives.requested_bytes[row])), []).append(row)
    candidates = in_module & (identity == NO_IDENTITY) & (fate == FATES.index("same_visit"))
    for row in np.flatnonzero(candidates & np.isin(module_id, [module for module, _ in known])).tolist():
        earlier = known.get((int(module_id[row]), int(lives.requested_bytes[row])), ())
        found[row] = any(
            born[one] < born[row] < lives.free_requested_index[one] and visit[one] != visit[row] for one in earlier
        )
    return found


def find_carried(
    owner: tuple[NDArray[np.int64], NDArray[np.int64]],
    step: NDArray[np.int64],
    fate: NDArray[np.int8],
    freed: tuple[NDArray[np.int64], NDArray[np.int64]],
    candidates: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return which blocks calls of modules keep for later calls.

    They are replaced in a later call or after it, or are never freed although there was one. Of an owner of such
    blocks, those of the last call are of this kind, too: it is not known what would have become of them.

    Args:
        owner: Module and Python stack of each block; -1 for none.
        step: Its step.
        fate: Its end; see FATES.
        freed: The phase and the step in which it was freed; negative if it was not.
        candidates: Which blocks were allocated in a call without gradients, and not returned by it.
    """
    module_id, stack_id = owner
    freed_in, freed_step = freed
    candidates = candidates & (module_id >= 0)
    last_step = step[candidates].max(initial=0)
    outlived = (freed_in == PHASES.index("between")) & (freed_step > step + 1)
    replaced = (fate == FATES.index("later")) & ((freed_in == PHASES.index("evaluation")) | outlived)
    stayed = np.isin(fate, [FATES.index("kept"), FATES.index("alive")])
    known = candidates & (replaced | (stayed & (step < last_step)))
    place = module_id * (stack_id.max(initial=0) + 2) + stack_id + 1
    carried: NDArray[np.bool_] = known | (candidates & stayed & np.isin(place, place[known]))
    return carried


def find_last_of_renewed(
    made: tuple[NDArray[np.int64], NDArray[np.int64]],
    step: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
    is_renewed: NDArray[np.bool_],
    candidates: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the blocks that the last run of an update has left, and the blocks in their place in the run before.

    Each run of a functional update replaces the weights. Those of the last one are used by no call that would show
    what they are. They are known by the same line, which has allocated the same sizes in the same order before.

    Args:
        made: Event that allocated each block, negative if that was before the recording; and its Python stack.
        step: Its step.
        size_bytes: Its size.
        is_renewed: Which blocks are known to be weights that were replaced.
        candidates: Which blocks are not known, and are alive at the end.
    """
    born, stack_id = made
    found: list[int] = []
    before: list[int] = []
    both = np.intersect1d(stack_id[candidates & (born >= 0)], stack_id[is_renewed])
    for stack in both[both >= 0].tolist():
        rows = np.flatnonzero((stack_id == stack) & (born >= 0))
        rows = rows[np.argsort(born[rows], kind="stable")]
        runs = [rows[step[rows] == number] for number in np.unique(step[rows]).tolist()]
        if len(runs) < 2 or not np.array_equal(size_bytes[runs[-1]], size_bytes[runs[-2]]):
            continue
        is_last = candidates[runs[-1]] & is_renewed[runs[-2]]
        found += runs[-1][is_last].tolist()
        before += runs[-2][is_last].tolist()
    return np.array(found, dtype=np.int64), np.array(before, dtype=np.int64)


def follows_a_result(stacks: NDArray[np.int64], born: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether the same line of the program has caused the allocation before that of each block.

    An operator allocates its result first, and then cuBLAS its workspace. A program's tensor has a line of its own.

    Args:
        stacks: Python stack of each event; -1 for none.
        born: Event that allocated each block; -1 if that was before the recording.
    """
    in_order = np.sort(born)
    before = in_order[np.maximum(np.searchsorted(in_order, born) - 1, 0)]
    known: NDArray[np.bool_] = (before >= 0) & (before < born)
    if known.any():
        known &= (stacks[born] >= 0) & (stacks[born] == stacks[before])
    return known


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
