"""Owners: the tag in force at each event, and observed tensors placed by the allocator's counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuledger.analyze.posting.device import DeviceHistory, device_histories
from gpuledger.analyze.posting.owners import _backward_calls, _when_freed, block_at, spread_tags
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.accounts import CATEGORIES, Identity, Phase
from gpuledger.model.journal.journal import COLUMNS, REASONS, Action, BlockState, JournalWriter, Part
from gpuledger.model.journal.reading import Journal, read_journal

ALLOC, GIVEN_BACK, DONE = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


def written(part: Part, directory: Path) -> Journal:
    part.facts["recorder"] = "dispatch"
    JournalWriter(directory).write(part)
    return read_journal(directory)


def with_events(*events: tuple[Action, int, int], stacks: tuple[int, ...] | int = -1) -> Part:
    """Return a part with events of ``(action, address, tag)``, and the stack of each."""
    part = Part()
    action, address, tag_id = zip(*events, strict=True)
    part.add(
        "events",
        device_idx=-1,
        action=action,
        address=address,
        bytes=100,
        stream=0,
        time_ns=range(len(events)),
        tag_id=tag_id,
        stack_id=stacks,
        operator_id=-1,
    )
    return part


def tag(part: Part, number: int, phase: Phase, visit: int, module_id: int = -1, step: int = 1) -> None:
    place = {"tag_id": number, "step": step, "phase": phase, "visit": visit, "module_id": module_id}
    part.add("tags", **place, scope_id=-1, stack_id=-1, flags=0)


def see(
    part: Part, kind: Identity, address: int, alloc_count: int, free_count: int, name_id: int = 0, module_id: int = 7
) -> None:
    place = {"device_idx": -1, "address": address, "alloc_count": alloc_count, "free_count": free_count}
    part.add("identities", **place, kind=kind, name_id=name_id, module_id=module_id)


def categories(history: DeviceHistory) -> list[str]:
    return [CATEGORIES[code] for code in history.owners.category.tolist()]


def test_an_event_without_a_tag_is_where_the_one_before_it_was_but_in_no_module(tmp_path: Path) -> None:
    part = with_events((ALLOC, 64, 0))
    tag(part, 0, Phase.FORWARD, 3, module_id=5, step=2)
    tag(part, 1, Phase.BACKWARD, 4, module_id=6, step=3)
    journal = written(part, tmp_path)
    tags = spread_tags(journal, np.array([-1, 0, -1, 1, -1, 2, 99, 0]))  # there is no tag 2 or 99
    assert tags.phase.tolist() == [Phase.SETUP, *[Phase.FORWARD] * 2, *[Phase.BACKWARD] * 4, Phase.FORWARD]
    assert tags.step.tolist() == [0, 2, 2, 3, 3, 3, 3, 2]
    assert tags.visit.tolist() == [0, 3, 3, 4, 4, 4, 4, 3]
    assert tags.module_id.tolist() == [-1, 5, -1, 6, -1, -1, -1, 5]
    assert spread_tags(journal, np.array([], dtype=np.int64)).step.tolist() == []


def test_without_tags_every_event_is_of_the_setup(tmp_path: Path) -> None:
    tags = spread_tags(written(with_events((ALLOC, 64, 0)), tmp_path), np.array([-1, 0]))
    assert (tags.phase.tolist(), tags.step.tolist(), tags.module_id.tolist()) == ([Phase.SETUP] * 2, [0] * 2, [-1] * 2)


def test_an_observed_tensor_belongs_to_the_block_that_was_there_then(tmp_path: Path) -> None:
    again = [(ALLOC, 64, 0), (GIVEN_BACK, 64, 0), (DONE, 64, 0)]
    part = with_events(*again, *again, (ALLOC, 64, 0))
    tag(part, 0, Phase.FORWARD, 0, module_id=1)
    see(part, Identity.WEIGHT, 64, alloc_count=2, free_count=2)  # nothing is there
    see(part, Identity.WEIGHT, 96, alloc_count=2, free_count=1)  # nor there
    see(part, Identity.GRADIENT, 64, alloc_count=2, free_count=1)
    (history,) = device_histories(written(part, tmp_path))
    assert categories(history) == ["temporary", "gradient", "activation"]
    assert history.owners.module_id.tolist() == [1, 7, 1]
    assert history.owners.name_id.tolist() == [-1, 0, -1]


def test_of_several_observed_tensors_the_lowest_kind_wins_then_the_first(tmp_path: Path) -> None:
    part = with_events((ALLOC, 64, 0))
    tag(part, 0, Phase.SETUP, 0)
    for kind, name_id in ((Identity.OPTIMIZER_STATE, 3), (Identity.WEIGHT, 1), (Identity.WEIGHT, 2)):
        see(part, kind, 64, 1, 0, name_id)
    (history,) = device_histories(written(part, tmp_path))
    assert categories(history) == ["weight"]
    assert history.owners.name_id.tolist() == [1]


def test_what_a_module_made_is_no_input_of_the_next(tmp_path: Path) -> None:
    part = with_events((ALLOC, 64, 0), (ALLOC, 128, 1), (ALLOC, 192, 2))
    tag(part, 0, Phase.FORWARD, 0, module_id=0)
    tag(part, 1, Phase.BETWEEN, 1)
    tag(part, 2, Phase.BACKWARD, 2)
    for address in (64, 128, 192):
        see(part, Identity.INPUT, address, 3, 0, name_id=-1)
    (history,) = device_histories(written(part, tmp_path))
    assert categories(history) == ["activation", "input", "activation_gradient"]


def test_what_a_tag_says_of_its_own_event_is_not_of_the_next(tmp_path: Path) -> None:
    """An event without a tag has step and phase of the one before it; flags, stack and scope stay with their event."""
    part = with_events((ALLOC, 64, 0), (ALLOC, 128, -1))
    part.add("tags", tag_id=0, step=1, phase=Phase.FORWARD, visit=3, module_id=5, scope_id=4, stack_id=6, flags=1)
    journal = written(part, tmp_path)
    tags = spread_tags(journal, journal.tables["events"]["tag_id"].astype("int64"))
    assert tags.flags.tolist() == [1, 0]
    assert tags.stack_id.tolist() == [6, -1]
    assert tags.scope_id.tolist() == [4, -1]
    assert tags.visit.tolist() == [3, 3]


def test_a_block_outlives_its_step_if_the_step_ends_after_it(tmp_path: Path) -> None:
    """What is made between steps and alive at the end is the next step's input, if no step has ended since."""
    part = with_events(*[(ALLOC, 64 * (1 + n), 0) for n in range(4)])
    tag(part, 0, Phase.BETWEEN, 1)
    sizes = dict.fromkeys(COLUMNS["counters"], 0)
    part.add("counters", **{**sizes, "device_idx": -1, "reason": REASONS.index("step_end"), "alloc_count": 2})
    (history,) = device_histories(written(part, tmp_path))
    assert categories(history) == ["other", "other", "input", "input"]


@pytest.mark.parametrize("counts", [(2, 4), (4, 2)])
def test_a_block_outlives_its_step_until_the_last_step_that_ended(counts: tuple[int, int], tmp_path: Path) -> None:
    """In whichever order the ends were written, and whatever other counters of other GPUs say."""
    part = with_events(*[(ALLOC, 64 * (1 + n), 0) for n in range(6)])
    tag(part, 0, Phase.BETWEEN, 1)
    sizes = dict.fromkeys(COLUMNS["counters"], 0)
    for reason, device_idx, count in (
        *(("step_end", -1, count) for count in counts),
        ("close", -1, 6),
        ("step_end", 0, 6),
    ):
        place = {"device_idx": device_idx, "reason": REASONS.index(reason), "alloc_count": count}
        part.add("counters", **{**sizes, **place})
    history = next(one for one in device_histories(written(part, tmp_path)) if one.device_idx == -1)
    assert categories(history) == ["other"] * 4 + ["input"] * 2


@pytest.mark.parametrize(
    ("modules", "owner"),
    [
        ((1, 2), 0),
        ((2, 1), 0),
        ((3, 1), 1),
        ((3, 2), 0),
        ((1, 4), -1),
        ((3, 3), 3),
        ((5, 6), 6),
        ((6, 1), -1),
        ((7, 1), -1),
    ],
)
def test_what_several_modules_share_belongs_to_the_module_around_them(
    modules: tuple[int, int], owner: int, tmp_path: Path
) -> None:
    """0 contains 1 and 2, 1 contains 3; 4 is another model. The name is known only where one module has the block.

    5 and 6 contain each other, which a damaged file may say; there is no module 7.
    """
    part = with_events((ALLOC, 64, 0))
    tag(part, 0, Phase.SETUP, 0)
    parents = (-1, 0, 0, 1, -1, 6, 5)
    part.modules += [{"path": str(n), "class": "M", "root": n, "parent": parent} for n, parent in enumerate(parents)]
    for module_id in modules:
        see(part, Identity.WEIGHT, 64, 1, 0, name_id=5, module_id=module_id)
    (history,) = device_histories(written(part, tmp_path))
    assert history.owners.module_id.tolist() == [owner]
    assert history.owners.name_id.tolist() == [5 if len(set(modules)) == 1 else -1]


def test_what_was_there_before_the_recording_is_of_no_step_module_or_line(tmp_path: Path) -> None:
    """The event with which the recording begins has an owner, which is not that of the blocks before it.

    They outlive the visit that made them, in whichever visit they are freed.
    """
    part = with_events((ALLOC, 4096, 0), *[(GIVEN_BACK, 512 * visit, visit) for visit in range(3)])
    for visit in range(3):
        number = {"tag_id": visit, "visit": visit, "step": 3, "phase": Phase.FORWARD, "module_id": 5}
        part.add("tags", **number, scope_id=4, stack_id=6, flags=1)
    part.add("snapshots", snapshot_id=0, reason=REASONS.index("open"), device_idx=-1, event_count=0, t_ns=0)
    for address in range(0, 4 * 512, 512):
        block = {"segment_address": 0, "address": address, "bytes": 512, "requested_bytes": 500, "stack_id": -1}
        part.add("snapshot_blocks", snapshot_id=0, device_idx=-1, state=BlockState.ALLOCATED, **block)
    part.add(
        "snapshot_segments", snapshot_id=0, **dict.fromkeys(COLUMNS["snapshot_segments"].keys() - {"snapshot_id"}, -1)
    )
    (history,) = device_histories(written(part, tmp_path))
    owners = history.owners
    assert history.lives.alloc_index.tolist() == [-1, -1, -1, -1, 0]
    assert history.lives.free_requested_index.tolist() == [1, 2, 3, NEVER, NEVER]
    assert categories(history) == ["other"] * 4 + ["activation"]
    columns = (owners.step, owners.module_id, owners.scope_id, owners.stack_id)
    assert [column.tolist() for column in columns] == [
        [before] * 4 + [own] for before, own in ((0, 3), (-1, 5), (-1, 4), (-1, 6))
    ]
    assert owners.phase.tolist() == [Phase.SETUP] * 4 + [Phase.FORWARD]


def test_what_is_not_freed_is_freed_by_nobody() -> None:
    """Also a block that was freed before the first event; -1 is no module, and phases begin at 0."""
    freed = np.array([NEVER, -1, 0, 2])
    lives: Any = SimpleNamespace(free_requested_index=freed)
    assert _when_freed(np.array([7, 8, -1]), lives).tolist() == [-2, -2, 7, -1]
    assert _when_freed(np.array([], dtype=np.int64), lives).tolist() == [-2] * 4


@pytest.mark.parametrize(("freed_in", "category"), [(5, "temporary"), (6, "activation_gradient")])
def test_what_one_module_makes_and_frees_in_backward_is_temporary(freed_in: int, category: str, tmp_path: Path) -> None:
    part = with_events((ALLOC, 64, 0), (GIVEN_BACK, 64, 1), (DONE, 64, 1))
    tag(part, 0, Phase.BACKWARD, 1, module_id=5)
    tag(part, 1, Phase.BACKWARD, 1, module_id=freed_in)
    (history,) = device_histories(written(part, tmp_path))
    assert categories(history) == [category]


def test_a_part_of_backward_has_the_stack_of_the_first_call_outside_modules(tmp_path: Path) -> None:
    """Not of a module's, not of another phase's, and not of a tag without a stack."""
    part = with_events((ALLOC, 64, 0))
    rows = (
        (Phase.BACKWARD, 3, 0, 5),  # in the first module
        (Phase.BACKWARD, 3, -1, -1),
        (Phase.BACKWARD, 3, -1, 0),
        (Phase.BACKWARD, 3, -1, 7),
        (Phase.FORWARD, 4, -1, 6),
        (Phase.BACKWARD, 9, -1, 8),
    )
    for number, (phase, visit, module_id, stack_id) in enumerate(rows):
        place = {"tag_id": number, "step": 1, "phase": phase, "visit": visit, "module_id": module_id}
        part.add("tags", **place, scope_id=-1, stack_id=stack_id, flags=0)
    journal = written(part, tmp_path)
    assert _backward_calls(journal, np.array([3, 4, 9, 2, 10])).tolist() == [0, -1, 8, -1, -1]


def test_without_a_call_of_backward_no_part_has_its_stack(tmp_path: Path) -> None:
    part = with_events((ALLOC, 64, 0))
    tag(part, 0, Phase.BACKWARD, 3)
    assert _backward_calls(written(part, tmp_path), np.array([3, 4])).tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("made_in", "freed_in", "category"),
    [
        (Phase.BETWEEN, Phase.BACKWARD, "activation"),
        (Phase.BETWEEN, Phase.FORWARD, "input"),
        (Phase.SETUP, Phase.BACKWARD, "activation"),
        (Phase.SETUP, Phase.FORWARD, "other"),
    ],
)
def test_what_backward_frees_was_held_by_the_graph(
    made_in: Phase, freed_in: Phase, category: str, tmp_path: Path
) -> None:
    part = with_events((ALLOC, 64, 0), (GIVEN_BACK, 64, 1), (DONE, 64, 1))
    tag(part, 0, made_in, 1)
    tag(part, 1, freed_in, 2)
    (history,) = device_histories(written(part, tmp_path))
    assert categories(history) == [category]


@pytest.mark.parametrize(("size_bytes", "category"), [(100, "workspace"), (101, "activation")])
def test_a_block_of_a_workspaces_size_that_outlives_its_step_is_one(
    size_bytes: int, category: str, tmp_path: Path
) -> None:
    part = with_events((ALLOC, 64, 0))
    tag(part, 0, Phase.FORWARD, 1)
    part.facts["workspace_bytes"] = [50, size_bytes]
    sizes = dict.fromkeys(COLUMNS["counters"], 0)
    part.add("counters", **{**sizes, "device_idx": -1, "reason": REASONS.index("step_end"), "alloc_count": 1})
    (history,) = device_histories(written(part, tmp_path))
    assert categories(history) == [category]


@pytest.mark.parametrize(
    ("stacks", "is_named", "category"),
    [
        ((0, 1, 1), False, "workspace"),
        ((0, 0, 1), False, "other"),
        ((0, -1, -1), False, "other"),
        ((0, 1, 1), True, "other"),
    ],
    ids=["after a result of the same line", "on a line of its own", "without stacks", "held by a variable"],
)
def test_a_workspace_of_an_operator_outside_the_model_is_one(
    stacks: tuple[int, ...], is_named: bool, category: str, tmp_path: Path
) -> None:
    """In the setup, a program makes tensors that it keeps, which can have the same size."""
    part = with_events((ALLOC, 0, 0), (ALLOC, 200, 0), (ALLOC, 400, 0), stacks=stacks)
    part.stacks = [[("train.py", line, "main")] for line in (1, 2)]
    tag(part, 0, Phase.SETUP, 1)
    part.facts["workspace_bytes"] = [100]
    if is_named:
        see(part, Identity.HELD, 400, 3, 0, module_id=-1)
    sizes = dict.fromkeys(COLUMNS["counters"], 0)
    part.add("counters", **{**sizes, "device_idx": -1, "reason": REASONS.index("step_end"), "alloc_count": 3})
    (history,) = device_histories(written(part, tmp_path))
    assert categories(history)[-1] == category


def test_an_observed_tensor_is_of_the_last_block_made_at_its_address_that_is_not_freed_yet() -> None:
    """Held to a search of all blocks, for random blocks that do not overlap."""
    random = np.random.default_rng(5)
    for _ in range(20):
        rows = []
        for address in random.permutation([0, 64, 128]).tolist():
            times = np.sort(random.choice(np.arange(-1, 12), size=6, replace=False))
            rows += [(address, born, freed) for born, freed in times.reshape(3, 2).tolist()]
            rows[-1] = (*rows[-1][:2], NEVER if random.integers(2) else rows[-1][2])
        random.shuffle(rows)
        address, born, freed = np.array(rows).T
        lives: Any = SimpleNamespace(address=address, alloc_index=born, free_requested_index=freed)
        places = [(place, at) for place in (0, 32, 64, 128, 192) for at in range(-1, 13)]
        found = block_at(lives, *np.array(places).T)
        expected = [
            next((row for row, (one, begin, end) in enumerate(rows) if one == place and begin <= at < end), -1)
            for place, at in places
        ]
        assert found.tolist() == expected


@pytest.mark.parametrize(
    ("kind", "module_id", "category"),
    [
        (Identity.HELD_OUTSIDE_GRAPHS, -1, "other"),
        (Identity.HELD, -1, "activation"),
        (Identity.HELD_OUTSIDE_GRAPHS, 3, "activation"),
    ],
    ids=["data", "of a graph", "of a module"],
)
def test_data_that_a_variable_holds_for_good_is_no_activation(
    kind: Identity, module_id: int, category: str, tmp_path: Path
) -> None:
    """A second block is freed in a later phase: the first rule of such a block applies."""
    part = with_events((ALLOC, 64, 0), (ALLOC, 256, 0), (GIVEN_BACK, 256, 1), (DONE, 256, 1))
    tag(part, 0, Phase.FORWARD, 1, module_id=module_id)
    tag(part, 1, Phase.OPTIMIZER, 2)
    for count, address in enumerate((64, 256), 1):
        see(part, kind, address, count, 0, module_id=-1)
    sizes = dict.fromkeys(COLUMNS["counters"], 0)
    ended = {"device_idx": -1, "reason": REASONS.index("step_end"), "alloc_count": 2, "free_count": 1}
    part.add("counters", **{**sizes, **ended})
    (history,) = device_histories(written(part, tmp_path))
    assert categories(history) == [category, "activation"]


def test_what_a_failed_forward_held_was_saved_by_autograd(tmp_path: Path) -> None:
    """The first forward fails after two results, and is tried again. A copy that was freed before was temporary."""
    part = with_events(
        (ALLOC, 1, 0),
        (ALLOC, 2, 0),
        (GIVEN_BACK, 2, 0),
        (DONE, 2, 0),
        (ALLOC, 3, 0),
        (Action.OOM, 0, 0),
        (GIVEN_BACK, 3, -1),
        (DONE, 3, -1),
        (GIVEN_BACK, 1, -1),
        (DONE, 1, -1),
        (ALLOC, 4, 0),
        (GIVEN_BACK, 4, 0),
        (DONE, 4, 0),
    )
    tag(part, 0, Phase.FORWARD, 1)
    (history,) = device_histories(written(part, tmp_path))
    assert categories(history) == ["activation", "temporary", "activation", "temporary"]
