"""The names that every breakdown uses: categories, phases, identities, device lines; and the rules for categories.

A block's category comes from *identity* (somebody saw whose storage it is) and, where there is none, from its
*lifetime* across phases. Never from a function's name. The rules are data: the first that holds wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

CATEGORIES = (
    "weight",
    "buffer",
    "input",
    "activation",
    "gradient",
    "activation_gradient",
    "optimizer_state",
    "temporary",
    "workspace",
    "communication",
    "other",
)
"""Categories in display order; ``blocks.category`` holds one of them."""

ROUNDING = "rounding"
"""The account beside the categories: allocated minus requested bytes of the live blocks."""

PHASES = ("setup", "forward", "backward", "optimizer", "evaluation", "between")
"""Phases in the order of a training step; ``blocks.phase`` holds one of them."""

DEVICE_LINES = (
    "free_segments",
    "fragmented",
    "awaiting_free",
    "context",
    "library",
    "driver",
    "other_processes",
    "unaccounted",
)
"""What the GPU holds beyond allocated bytes, in the order of the balance."""


class Phase(IntEnum):
    """Position in :data:`PHASES`; the number kept in the journal."""

    SETUP = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    EVALUATION = 4
    BETWEEN = 5


class Identity(IntEnum):
    """What a storage was seen to be; the number kept in the journal."""

    WEIGHT = 0
    BUFFER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    INPUT = 4


IDENTITY_CATEGORY = {
    Identity.WEIGHT: "weight",
    Identity.BUFFER: "buffer",
    Identity.GRADIENT: "gradient",
    Identity.OPTIMIZER_STATE: "optimizer_state",
    Identity.INPUT: "input",
}


FATES = ("same_visit", "later", "kept", "alive")
"""How a block can end; see :class:`Rule`."""


@dataclass(frozen=True)
class Rule:
    """One line of :data:`LIFETIME_RULES`. A ``None`` matches anything; ``phases`` are where the block was allocated.

    ``fates`` say how the block ended: ``same_visit`` (given back before the phase it was born in was left), ``later``
    (given back in a later phase or step), ``kept`` (outlived its step and was never given back) or ``alive`` (not
    given back, and the recording closed inside its step). ``communicating`` says whether it was made while buffers of
    collectives were set up, ``same_module`` says whether it was given back while the
    module that allocated it was still the one at work, ``freed_in_backward`` whether a backward pass gave it back.
    """

    category: str
    phases: tuple[str, ...]
    fates: tuple[str, ...]
    recomputed: bool | None = None
    communicating: bool | None = None
    workspace_sized: bool | None = None
    same_module: bool | None = None
    freed_in_backward: bool | None = None
    why: str = ""


_NOT_FREED = ("kept", "alive")
_OUTLIVES_PHASE = ("later", "kept", "alive")

LIFETIME_RULES: tuple[Rule, ...] = (
    Rule(
        "communication",
        PHASES,
        FATES,
        communicating=True,
        why="allocated while DistributedDataParallel made its buckets",
    ),
    Rule(
        "workspace",
        ("forward", "backward", "optimizer", "evaluation"),
        ("kept",),
        workspace_sized=True,
        why="a library's workspace: allocated inside an operator with the library's own size and kept for good",
    ),
    Rule(
        "activation",
        ("backward",),
        FATES,
        recomputed=True,
        why="a checkpointed module ran its forward again",
    ),
    Rule(
        "temporary",
        ("forward", "evaluation", "setup", "between", "optimizer"),
        ("same_visit",),
        why="allocated and freed before the phase was left",
    ),
    Rule("activation", ("forward", "evaluation"), _OUTLIVES_PHASE, why="allocated in forward, alive after it"),
    Rule(
        "temporary",
        ("backward",),
        ("same_visit",),
        same_module=True,
        why="allocated and freed while one module's backward was at work",
    ),
    Rule(
        "activation_gradient",
        ("backward",),
        FATES,
        why="allocated in backward and handed on; the parameters' gradients are found by identity",
    ),
    Rule("optimizer_state", ("optimizer",), _NOT_FREED, why="allocated by an optimizer and kept"),
    Rule("temporary", ("optimizer",), ("later",), why="allocated by an optimizer and given back by a later phase"),
    Rule(
        "activation",
        ("setup", "between"),
        ("later",),
        freed_in_backward=True,
        why="allocated outside modules and freed by a backward, because the graph used it",
    ),
    Rule(
        "input",
        ("between",),
        ("later", "alive"),
        why="made between two steps, outside every module, and used up by the next one",
    ),
    Rule("other", ("setup", "between"), _OUTLIVES_PHASE, why="made by the script itself and never seen in a model"),
)
"""First match wins. Identity is asked before any of these."""
