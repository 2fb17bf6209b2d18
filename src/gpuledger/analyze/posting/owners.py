"""Find each block's owner, from the allocating thread's tag and from tensors observed at the block's address.

A block's Python stack is found here too, because the tag has the stack of the call that a part of backward belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.module_paths import ModulesAround
from gpuledger.analyze.posting import rules
from gpuledger.analyze.posting.replay import NEVER, Replay, freed_by_failure
from gpuledger.analyze.posting.rules import NO_IDENTITY, BlockFeatures, categorize, find_carried
from gpuledger.model.accounts import FATES, IDENTITY_CATEGORY, Identity, Phase
from gpuledger.model.journal.journal import REASONS, TagFlag
from gpuledger.model.journal.reading import Journal
from gpuledger.model.source_files import is_framework

I64 = NDArray[np.int64]

_ORDER = {int(identity): place for place, identity in enumerate(IDENTITY_CATEGORY)}
"""Identity -> its place among several identities of one storage; the lowest applies."""

_MADE_OUTSIDE = (Identity.INPUT, Identity.CACHE, Identity.LEAF)
"""Identities of blocks that no module has allocated."""

_HELD = (Identity.HELD, Identity.HELD_OUTSIDE_GRAPHS)
"""Identities that only name a block."""


@dataclass(frozen=True)
class EventTags:
    """Columns with one entry per event: step, phase, module and scope at that time.

    If the thread had no tag, phase, step and visit are those of the event before, and ``module_id`` is -1.
    """

    phase: NDArray[np.int8]
    step: I64
    visit: I64
    module_id: I64
    flags: I64
    stack_id: I64
    scope_id: I64


@dataclass(frozen=True)
class Owners:
    """Columns with one entry per block, except ``event_tags``; -1 for none."""

    event_tags: EventTags
    step: I64
    phase: NDArray[np.int8]
    category: NDArray[np.int8]
    module_id: I64
    name_id: I64
    scope_id: I64
    stack_id: I64


_AT_WORK = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.EVALUATION)
"""The phases in which a program seldom makes a tensor that it keeps."""


def find_owners(
    journal: Journal,
    device_idx: int,
    tags: EventTags,
    stack_id: I64,
    index_of: Callable[[I64, I64], I64],
    lives: Replay,
    action: NDArray[np.int8],
) -> Owners:
    """Return the owner of every block of one device.

    Args:
        journal: The rank's journal.
        device_idx: The device.
        tags: Tags of its events.
        stack_id: Python stack of each of its events; -1 for none.
        index_of: Returns positions among the events from counts of allocations and frees.
        lives: Its blocks.
        action: Action of each of its events.
    """
    born = lives.alloc_index
    before, at = born < 0, np.maximum(born, 0)
    phase = _pick(tags.phase.astype(np.int64), at, before, int(Phase.SETUP)).astype(np.int8)
    module_id = _pick(tags.module_id, at, before, -1)
    flags = _pick(tags.flags, at, before, 0)
    step = _pick(tags.step, at, before, 0)
    stacks = _stacks(journal, tags, stack_id)
    stack = _pick(stacks, at, before, -1)
    seen = _identities(journal, device_idx, index_of, lives, phase, module_id)
    visit = _pick(tags.visit, at, before, -1)
    fate = _fates(visit, tags.visit, lives, _step_ends(journal, device_idx, index_of))
    fate[(phase == Phase.FORWARD) & freed_by_failure(action, lives)] = FATES.index("later")
    seen.renew(lives, step, stack)
    sized = np.isin(lives.requested_bytes, journal.facts.get("workspace_bytes") or [])
    addresses = journal.facts.get("workspace_addresses")  # of all of them, from a simulated GPU
    is_known = sized & np.isin(lives.address, addresses or [])
    fate[is_known & (fate == FATES.index("alive"))] = FATES.index("kept")
    phase = _without_lasting_data(phase, fate, (module_id < 0) & seen.outside_graphs & (step <= 1))
    freed = _when_freed(tags.phase.astype(np.int64), lives), _when_freed(tags.step.astype(np.int64), lives)
    features = BlockFeatures(
        identity=seen.kind,
        phase=phase,
        fate=fate,
        recomputed=(flags & TagFlag.RECOMPUTED) != 0,
        communicating=(flags & TagFlag.COMMUNICATION) != 0,
        reducing=(flags & TagFlag.REDUCE_SCATTER) != 0,
        workspace_sized=is_known
        if addresses is not None
        else sized & (np.isin(phase, _AT_WORK) | ((seen.name_id < 0) & rules.follows_a_result(stacks, born))),
        same_module=_when_freed(tags.module_id, lives) == module_id,
        freed_in_backward=freed[0] == Phase.BACKWARD,
        of_update=seen.of_update,
        carried=find_carried((module_id, stack), step, fate, freed, (phase == Phase.EVALUATION) & ~seen.is_output),
        added=rules.find_added((born, visit, module_id), lives, phase, fate, seen.kind),
    )
    return Owners(
        event_tags=replace(tags, phase=_named(journal, tags.phase, tags.step)),
        step=step,
        phase=_named(journal, phase, step),
        category=categorize(features),
        module_id=np.where(seen.kind < 0, in_traced_code(journal, stack, seen.module_id), seen.module_id),
        name_id=seen.name_id,
        scope_id=_pick(tags.scope_id, at, before, -1),
        stack_id=stack,
    )


def _without_lasting_data(
    phase: NDArray[np.int8], fate: NDArray[np.int8], is_data: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """Return phases in which data of the program is of the setup, although a forward has begun.

    A forward ends with its backward. A call that only tries the shapes of a model has none, so that what the program
    makes after it, such as a replay buffer, seems to be of that forward.

    Args:
        phase: Phase of each block's allocation.
        fate: How each block ends.
        is_data: Whether a variable holds a block from before the second step that no module and no operator with
            gradients has computed. In later steps, results of a function can be such blocks.
    """
    lasts = is_data & (fate == FATES.index("kept")) & (phase == Phase.FORWARD)
    return np.where(lasts, np.int8(Phase.SETUP), phase)


def _named(journal: Journal, phase: NDArray[np.int8], step: I64) -> NDArray[np.int8]:
    """Return phases in which nothing after the first step is "setup", which memory is until a phase begins.

    A program without steps and modules has one word for what is in no other phase: its operators, which are timed, are
    "between".
    """
    phase = np.where((phase == Phase.SETUP) & (step > 1), np.int8(Phase.BETWEEN), phase)
    has_forward = np.isin(journal.tables["tags"]["phase"], (Phase.FORWARD, Phase.EVALUATION)).any()
    if journal.rows("steps") or journal.modules or has_forward:
        return phase
    return np.where(phase == Phase.SETUP, np.int8(Phase.BETWEEN), phase)


def in_traced_code(journal: Journal, stack_id: I64, module_id: I64) -> I64:
    """Return the module of each stack in the code of a graph module (``torch.export``), and ``module_id`` elsewhere.

    Nothing calls the modules inside. A line of the code says which of them it computes.
    """
    found = module_id
    for stack, graph_module, inner in journal.facts.get("stack_modules") or ():
        if 0 <= inner < len(journal.modules):
            found = np.where((stack_id == stack) & (module_id == graph_module), inner, found)
    return found


def _stacks(journal: Journal, tags: EventTags, own: I64) -> I64:
    """Return the Python stack of each event: its own, or that of the call that its part of backward belongs to.

    On a GPU, autograd runs backward in a thread of its own, which has no Python frames. Events there have the stack of
    the forward call of their module. Outside modules, they have the stack of the call of ``backward()`` or
    ``autograd.grad()``, for which the program's thread waits.
    """
    call = np.where(tags.stack_id >= 0, tags.stack_id, _backward_calls(journal, tags.visit))
    says_less = np.array([*map(says_less_than_a_call, journal.stacks), True], dtype=bool)
    return np.where((call >= 0) & says_less[own], call, own)


def _backward_calls(journal: Journal, visit: I64) -> I64:
    """Return the stack of the call that started backward, for each event's visit; -1 if the visit has none.

    The first tag of a visit outside modules is that of this call.
    """
    table = journal.tables["tags"]
    calls = (table["phase"] == Phase.BACKWARD) & (table["module_id"] < 0) & (table["stack_id"] >= 0)
    visits, first = np.unique(table["visit"][calls].astype(np.int64), return_index=True)
    if not visits.size:
        return np.full(visit.shape, -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(visits, visit), visits.size - 1)
    found = table["stack_id"][calls].astype(np.int64)[first][at]
    return np.where(visits[at] == visit, found, -1)


def says_less_than_a_call(stack: list[tuple[str, int, str]]) -> bool:
    """Return whether the stack of the call is preferred to a stack in backward.

    A stack that ends in the call that runs backward is the same for all nodes of the graph. One with frames of PyTorch
    and Python only is that of a thread of autograd.
    """
    return not stack or stack[0][2] == "_engine_run_backward" or all(is_framework(file, at) for file, _, at in stack)


def _pick(values: I64, at: I64, before: NDArray[np.bool_], default: int) -> I64:
    if not values.size:
        return np.full(at.shape, default, dtype=np.int64)
    return np.where(before, default, values[at]).astype(np.int64)


def spread_tags(journal: Journal, tag_id: I64) -> EventTags:
    """Return step, phase, module and scope at each event, from the events' tags."""
    table = journal.tables["tags"]
    known = (tag_id >= 0) & (tag_id < (count := int(table["tag_id"].size)))
    # An event without a tag of its own gets phase and step of the last tagged event before it, but not its module:
    # that event can be of another thread.
    last = np.maximum.accumulate(np.where(known, np.arange(tag_id.size), -1))
    row = np.where(last >= 0, tag_id[np.maximum(last, 0)], -1)

    def spread(column: str, default: int, *, only_own: bool = False) -> I64:
        values = table[column].astype(np.int64)
        usable = known if only_own else row >= 0
        if not count:
            return np.full(tag_id.shape, default, dtype=np.int64)
        return np.where(usable, values[np.maximum(row, 0)], default)

    return EventTags(
        phase=spread("phase", int(Phase.SETUP)).astype(np.int8),
        step=spread("step", 0),
        visit=spread("visit", 0),
        module_id=spread("module_id", -1, only_own=True),
        flags=spread("flags", 0, only_own=True),
        stack_id=spread("stack_id", -1, only_own=True),
        scope_id=spread("scope_id", -1, only_own=True),
    )


def with_held_steps(journal: Journal, tags: EventTags, time_ns: I64) -> EventTags:
    """Return the tags of events with the steps that were counted later than they ended.

    Calls are held back while a training can follow. Their events have the number of the first one, and no counters were
    read at their ends, so that only the time says which event belongs to which.
    """
    steps, counters = journal.tables["steps"], journal.tables["counters"]
    read = counters["step"][counters["reason"] == REASONS.index("step_end")]
    held = (steps["recorded"] == 1) & ~np.isin(steps["step"], read)
    if np.count_nonzero(held) < 2:
        return tags
    recorded = steps["step"][steps["recorded"] == 1].astype(np.int64)
    ends_ns = steps["end_ns"][steps["recorded"] == 1]
    place = np.minimum(np.searchsorted(ends_ns, time_ns, "left"), recorded.size - 1)
    return replace(tags, step=np.where(tags.step == steps["step"][held].min(), recorded[place], tags.step))


@dataclass(frozen=True)
class _Seen:
    kind: NDArray[np.int8]
    name_id: I64
    module_id: I64
    of_update: NDArray[np.bool_]
    outside_graphs: NDArray[np.bool_]
    is_output: NDArray[np.bool_]

    def renew(self, lives: Replay, step: I64, stack_id: I64) -> None:
        """Give what the last functional update has left the identities of what it replaces."""
        is_freed = lives.free_requested_index != NEVER
        found, before = rules.find_last_of_renewed(
            (lives.alloc_index, stack_id),
            step,
            lives.requested_bytes,
            is_freed & np.isin(self.kind, (Identity.WEIGHT, Identity.LEAF)),
            ~is_freed & (self.kind == NO_IDENTITY),
        )
        for column in (self.kind, self.name_id, self.module_id):
            column[found] = column[before]


def _identities(
    journal: Journal,
    device_idx: int,
    index_of: Callable[[I64, I64], I64],
    lives: Replay,
    phase: NDArray[np.int8],
    module_id: I64,
) -> _Seen:
    """Return the observed identity of each block: of several, the first in the order of the identities.

    The first observation of that identity gives name and module. If tensors of several modules share the block (a
    bucket, a flat parameter), it belongs to the module around them and has no name, as gradients of one module that
    share it. A weight outside of modules that stands in for a parameter has its name and module, and so have its
    gradient and state. ``module_id`` is that of the allocation, which a block without an identity keeps. Such a block
    outside of modules has the name, and the module, of the first attribute or variable that was seen to hold it. An
    input has such a name, too, and so has optimizer state of several weights.
    """
    kind = np.full(lives.address.size, NO_IDENTITY, dtype=np.int8)
    name = np.full(lives.address.size, -1, dtype=np.int64)
    held, holder, owner = name.copy(), name.copy(), module_id.copy()
    of_update, outside_graphs, is_output, is_written = (np.zeros(lives.address.size, dtype=bool) for _ in range(4))
    table = journal.tables["identities"]
    mine = table["device_idx"] == device_idx
    where = index_of(table["alloc_count"][mine], table["free_count"][mine])
    block = block_at(lives, table["address"][mine], where)
    # Blocks that a model is called with are inputs only if no module allocated them. Otherwise the input of an
    # outermost call is the output of another one. Likewise, a leaf is then a detached activation and no weight.
    outside = (module_id < 0) & np.isin(phase, (Phase.SETUP, Phase.BETWEEN, Phase.FORWARD, Phase.EVALUATION))
    shared = ModulesAround(journal.modules)
    columns = block, *(table[column][mine].astype(np.int64) for column in ("kind", "name_id", "module_id"))
    stand_ins = _stand_ins(*columns)
    for row, what, called, module in zip(*(column.tolist() for column in columns), strict=True):
        called, module = stand_ins.get(called, (called, module)) if module < 0 else (called, module)
        if row >= 0 and what in _HELD and held[row] < 0:
            held[row], holder[row] = called, module
        if row >= 0:
            outside_graphs[row] |= what == Identity.HELD_OUTSIDE_GRAPHS
            of_update[row] |= what == Identity.UPDATE
            is_output[row] |= what == Identity.OUTPUT
        if row < 0 or what not in _ORDER or (what in _MADE_OUTSIDE and not outside[row]):
            continue
        is_written[row] |= what == Identity.CACHE
        if kind[row] == NO_IDENTITY or _ORDER[what] < _ORDER[int(kind[row])]:
            kind[row], name[row], owner[row] = what, called, module
        elif what == kind[row] and what != Identity.INPUT and module != owner[row]:
            name[row], owner[row] = -1, shared.of(int(owner[row]), module)
        elif what == kind[row] and what in (Identity.GRADIENT, Identity.SHARDED_GRADIENT) and called != name[row]:
            name[row] = -1
    kind[is_written & np.isin(kind, (Identity.BUFFER, Identity.EARLIER_BUFFER))] = Identity.CACHE
    is_held = (kind == NO_IDENTITY) & (module_id < 0) & (held >= 0)
    is_of_several = (kind == Identity.OPTIMIZER_STATE) & (owner < 0) & (held >= 0)
    is_named = is_held | ((np.isin(kind, (Identity.INPUT, Identity.CACHE)) | is_of_several) & (name < 0))
    names, owners = np.where(is_named, held, name), np.where(is_held, holder, owner)
    return _Seen(kind, names, owners, of_update, outside_graphs, is_output)


def _stand_ins(block: I64, kind: I64, name_id: I64, module_id: I64) -> dict[int, tuple[int, int]]:
    """Return the name of a weight outside of modules -> name and module of the one parameter that it stands in for.

    An optimizer updates the weights in a dict, and ``functional_call`` puts them in the place of a module's parameters.
    """
    loose: dict[int, int] = {}
    inside: dict[int, set[tuple[int, int]]] = {}
    weights = (block >= 0) & (kind == Identity.WEIGHT)
    for row, called, module in zip(*(one[weights].tolist() for one in (block, name_id, module_id)), strict=True):
        if module < 0:
            loose.setdefault(row, called)
        else:
            inside.setdefault(row, set()).add((called, module))
    return {called: next(iter(inside[row])) for row, called in loose.items() if len(inside.get(row, ())) == 1}


def block_at(lives: Replay, address: I64, index: I64) -> I64:
    """Return the row of the block that contains each ``address`` at each event ``index``; -1 if there is none."""
    # An address is reused by many blocks. Sorted by address and then by allocation, the last one allocated up to
    # ``index`` is the only candidate.
    order = np.lexsort((lives.alloc_index, lives.address))
    sorted_address, sorted_born = lives.address[order], lives.alloc_index[order]
    found = np.full(address.size, -1, dtype=np.int64)
    lows = np.searchsorted(sorted_address, address, "left")
    highs = np.searchsorted(sorted_address, address, "right")
    for number, (low, high, at) in enumerate(zip(lows.tolist(), highs.tolist(), index.tolist(), strict=True)):
        place = low + int(np.searchsorted(sorted_born[low:high], at, "right")) - 1
        if place >= low and lives.free_requested_index[order[place]] > at:
            found[number] = order[place]
    return found


def _step_ends(journal: Journal, device_idx: int, index_of: Callable[[I64, I64], I64]) -> I64:
    table = journal.tables["counters"]
    mine = (table["device_idx"] == device_idx) & (table["reason"] == REASONS.index("step_end"))
    return np.sort(index_of(table["alloc_count"][mine], table["free_count"][mine]))


def _fates(visit_of_block: I64, visit_of_event: I64, lives: Replay, step_ends: I64) -> NDArray[np.int8]:
    """Return how each block ends, from the visit that allocated it: -1 if that was before the recording."""
    same_visit = _when_freed(visit_of_event, lives) == visit_of_block
    freed = lives.free_requested_index != NEVER
    # Blocks of the last, unfinished step are alive at the end without having survived a step: they are not "kept".
    outlived = np.searchsorted(step_ends, lives.alloc_index, "left") < step_ends.size
    return np.select(
        [same_visit, freed, outlived],
        [FATES.index("same_visit"), FATES.index("later"), FATES.index("kept")],
        FATES.index("alive"),
    ).astype(np.int8)


def _when_freed(values: I64, lives: Replay) -> I64:
    """Return each block's entry of ``values`` (one per event) at the event that freed it; -2 if it was not freed."""
    freed = (lives.free_requested_index >= 0) & (lives.free_requested_index != NEVER)
    if not values.size:
        return np.full(freed.shape, -2, dtype=np.int64)
    return np.where(freed, values[np.where(freed, lives.free_requested_index, 0)], -2)
