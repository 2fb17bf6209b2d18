"""Names used by every breakdown: categories, phases, identities and device lines; and the rules for categories.

A block's category comes from its *identity* (an observed tensor at its address) or, if it has none, from its *lifetime*
across phases. Function names are never used. The rules are data, and the first match applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

CATEGORIES = (
    "weight",
    "sharded_weight",
    "gathered_weight",
    "buffer",
    "input",
    "activation",
    "cache",
    "gradient",
    "sharded_gradient",
    "activation_gradient",
    "optimizer_state",
    "sharded_optimizer_state",
    "temporary",
    "workspace",
    "reduce_scatter",
    "communication",
    "other",
)
"""Categories in display order; the values of ``blocks.category``."""

UNSHARDED_CATEGORY = {
    "sharded_weight": "weight",
    "gathered_weight": "weight",
    "sharded_gradient": "gradient",
    "sharded_optimizer_state": "optimizer_state",
    "reduce_scatter": "communication",
}
"""Category of sharded training -> the category that it is counted in where sharding is not distinguished."""

LASTING_CATEGORIES = ("weight", "sharded_weight", "buffer", "optimizer_state", "sharded_optimizer_state")
"""Categories of what a training makes once and keeps from step to step."""

ONE_OF_EACH_WEIGHT = (*LASTING_CATEGORIES, "gradient", "sharded_gradient")
"""These and the gradients of weights: a training that goes on has no more of them."""

ROUNDING = "rounding"
"""A line beside the categories: allocated minus requested bytes of the live blocks."""

PHASES = ("setup", "forward", "backward", "optimizer", "evaluation", "between")
"""Phases in the order of a training step; the values of ``blocks.phase``."""

SPAN_KINDS = ("phase", "kernel", "copy", "collective", "host")
"""Kinds of spans; the values of ``spans.kind``. In a journal's activities, a kind's number is its position."""

DEVICE_LINES = (
    "free_segments",
    "graph_pools",
    "fragmented",
    "awaiting_free",
    "context",
    "library",
    "nccl",
    "driver",
    "other_processes",
    "unaccounted",
)
"""GPU memory in use beyond allocated bytes, in the order of the memory balance."""


class Phase(IntEnum):
    """Position in :data:`PHASES`, as stored in the journal."""

    SETUP = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    EVALUATION = 4
    BETWEEN = 5


class Identity(IntEnum):
    """Observed kind of a storage, as stored in the journal."""

    WEIGHT = 0
    BUFFER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    INPUT = 4
    GATHERED_WEIGHT = 5
    SHARDED_WEIGHT = 6
    SHARDED_GRADIENT = 7
    SHARDED_OPTIMIZER_STATE = 8
    LEAF = 9
    """A tensor that no module and no optimizer holds, with a ``.grad`` that a backward pass has written."""
    LEAF_GRADIENT = 10
    HELD = 11
    """A tensor that an attribute or a variable holds. It names a block without an identity, and gives no category."""
    UPDATE = 12
    """A tensor that was computed from gradients, and that the program still has after the next backward pass. It gives
    no category, but says that a block belongs to no batch."""
    COMMUNICATION_BUFFER = 13
    """A buffer of collectives that a framework keeps, such as a bucket of gradients."""
    HELD_OUTSIDE_GRAPHS = 14
    """A tensor that an attribute or a variable holds, and that no operator with gradients has computed."""
    EARLIER_WEIGHT = 15
    """A parameter that a module had before its first call, if there was one. It can have another one by then."""
    EARLIER_BUFFER = 16
    OUTPUT = 17
    """A tensor that a call without gradients has returned. It gives no category, but says that a block is no cache."""
    CACHE = 18
    """A tensor from before a call without gradients that the call has written, as keys and values: an argument, a
    buffer, or what a module or the program holds. It takes precedence over the identity of a buffer."""


IDENTITY_CATEGORY = {
    Identity.COMMUNICATION_BUFFER: "communication",
    Identity.GATHERED_WEIGHT: "gathered_weight",
    Identity.SHARDED_WEIGHT: "sharded_weight",
    Identity.WEIGHT: "weight",
    Identity.BUFFER: "buffer",
    Identity.EARLIER_WEIGHT: "weight",
    Identity.EARLIER_BUFFER: "buffer",
    Identity.SHARDED_GRADIENT: "sharded_gradient",
    Identity.GRADIENT: "gradient",
    Identity.SHARDED_OPTIMIZER_STATE: "sharded_optimizer_state",
    Identity.OPTIMIZER_STATE: "optimizer_state",
    Identity.CACHE: "cache",
    Identity.INPUT: "input",
    Identity.LEAF: "weight",
    Identity.LEAF_GRADIENT: "gradient",
}
"""Identity -> category. If a storage was observed as several of them, the first in this order applies."""


FATES = ("same_visit", "later", "kept", "alive")
"""How a block can end; see :class:`Rule`."""


@dataclass(frozen=True)
class Rule:
    """One rule of :data:`LIFETIME_RULES`. ``None`` matches anything. ``phases`` are the phases of the allocation.

    ``fates`` describe the end of the block: ``same_visit`` (freed before its phase ended), ``later`` (freed in a later
    phase or step), ``kept`` (survived its step and was not freed) or ``alive`` (not freed, and the recording ended
    within its step). ``communicating``: allocated while buffers of collectives were built. ``reducing``: allocated
    while gradients were reduced to shards. ``same_module``: freed while the module that allocated it was still the
    current one. ``freed_in_backward``: freed in a backward pass. ``of_update``: observed as :attr:`Identity.UPDATE`.
    ``carried``: kept for a later call without gradients, or until one, and not returned by its own.
    ``added``: of the size of a gradient that an earlier backward pass of the same module has left.
    """

    category: str
    phases: tuple[str, ...]
    fates: tuple[str, ...]
    recomputed: bool | None = None
    communicating: bool | None = None
    reducing: bool | None = None
    workspace_sized: bool | None = None
    same_module: bool | None = None
    freed_in_backward: bool | None = None
    of_update: bool | None = None
    carried: bool | None = None
    added: bool | None = None
    why: str = ""


_NOT_FREED = ("kept", "alive")
_OUTLIVES_PHASE = ("later", "kept", "alive")

LIFETIME_RULES: tuple[Rule, ...] = (
    Rule(
        "reduce_scatter",
        PHASES,
        FATES,
        reducing=True,
        why="allocated while sharded training reduced gradients: input and output of a reduce-scatter",
    ),
    Rule(
        "communication",
        PHASES,
        FATES,
        communicating=True,
        why="allocated while buckets of gradients were made or compressed, or while sharded training gathered weights",
    ),
    Rule(
        "workspace",
        PHASES,
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
    Rule(
        "cache",
        ("evaluation",),
        _OUTLIVES_PHASE,
        carried=True,
        why="allocated by a call without gradients, and kept for later calls or replaced in one",
    ),
    Rule("activation", ("forward", "evaluation"), _OUTLIVES_PHASE, why="allocated in forward, alive after it"),
    Rule(
        "activation_gradient",
        ("backward",),
        ("same_visit",),
        same_module=True,
        added=True,
        why="a gradient of another micro-batch, which is added to that of an earlier one",
    ),
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
    Rule(
        "activation",
        ("optimizer",),
        ("later",),
        freed_in_backward=True,
        why="allocated outside modules in a closure of an optimizer and freed by a backward, because the graph used it",
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
        "other",
        ("between",),
        ("later", "alive"),
        of_update=True,
        why="computed from gradients by an update of the program's own, and left in a variable",
    ),
    Rule(
        "input",
        ("between",),
        ("later", "alive"),
        why="made between two steps, outside every module, and used up by the next one",
    ),
    Rule("other", ("setup", "between"), _OUTLIVES_PHASE, why="made by the script itself and never seen in a model"),
)
"""The first match applies. The identity takes precedence over all of these."""
