"""Categories from features: identity first, then the first rule that holds, and never none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gpuledger.analyze.posting.rules import NO_IDENTITY, BlockFeatures, categorize
from gpuledger.model.accounts import (
    CATEGORIES,
    FATES,
    IDENTITY_CATEGORY,
    LIFETIME_RULES,
    PHASES,
    UNSHARDED_CATEGORY,
    Identity,
)

FLAGS = (
    *("recomputed", "communicating", "reducing", "workspace_sized", "same_module", "freed_in_backward", "of_update"),
    *("carried", "added"),
)


def category(phase: str, fate: str, identity: int = NO_IDENTITY, **flags: bool) -> str:
    features = BlockFeatures(
        identity=np.array([identity], np.int8),
        phase=np.array([PHASES.index(phase)], np.int8),
        fate=np.array([FATES.index(fate)], np.int8),
        **{name: np.array([flags.get(name, False)]) for name in FLAGS},
    )
    return CATEGORIES[categorize(features)[0]]


@pytest.mark.parametrize("identity", list(IDENTITY_CATEGORY))
def test_what_was_seen_goes_before_any_lifetime(identity: Identity) -> None:
    for phase, fate in itertools.product(PHASES, FATES):
        flags = dict.fromkeys(FLAGS, True)
        assert category(phase, fate, identity, **flags) == IDENTITY_CATEGORY[identity]


@pytest.mark.parametrize(
    ("phase", "fate", "flags", "expected"),
    [
        ("forward", "same_visit", {}, "temporary"),
        ("forward", "later", {}, "activation"),
        ("forward", "kept", {}, "activation"),
        ("forward", "kept", {"workspace_sized": True}, "workspace"),
        ("forward", "later", {"workspace_sized": True}, "activation"),
        ("evaluation", "same_visit", {}, "temporary"),
        ("evaluation", "later", {}, "activation"),
        ("evaluation", "later", {"carried": True}, "cache"),
        ("evaluation", "kept", {"carried": True}, "cache"),
        ("evaluation", "kept", {"carried": True, "workspace_sized": True}, "workspace"),
        ("evaluation", "same_visit", {"carried": True}, "temporary"),
        ("forward", "later", {"carried": True}, "activation"),
        ("backward", "same_visit", {"same_module": True}, "temporary"),
        ("backward", "same_visit", {"same_module": True, "added": True}, "activation_gradient"),
        ("backward", "same_visit", {"same_module": True, "added": True, "recomputed": True}, "activation"),
        ("backward", "same_visit", {}, "activation_gradient"),
        ("backward", "kept", {}, "activation_gradient"),
        ("backward", "same_visit", {"recomputed": True, "same_module": True}, "activation"),
        ("optimizer", "same_visit", {}, "temporary"),
        ("optimizer", "later", {}, "temporary"),
        ("optimizer", "kept", {}, "optimizer_state"),
        ("optimizer", "alive", {}, "optimizer_state"),
        ("between", "later", {}, "input"),
        ("between", "later", {"of_update": True}, "other"),
        ("between", "alive", {"of_update": True}, "other"),
        ("between", "later", {"of_update": True, "freed_in_backward": True}, "activation"),
        ("between", "same_visit", {"of_update": True}, "temporary"),
        ("between", "later", {"freed_in_backward": True}, "activation"),
        ("between", "kept", {}, "other"),
        ("setup", "later", {}, "other"),
        ("setup", "later", {"freed_in_backward": True}, "activation"),
        ("setup", "same_visit", {}, "temporary"),
        ("setup", "later", {"communicating": True}, "communication"),
        ("backward", "later", {"reducing": True}, "reduce_scatter"),
        ("backward", "kept", {"reducing": True, "communicating": True}, "reduce_scatter"),
    ],
)
def test_lifetimes(phase: str, fate: str, flags: dict[str, bool], expected: str) -> None:
    assert category(phase, fate, **flags) == expected


def test_some_rule_holds_for_everything_and_every_rule_for_something() -> None:
    every = list(itertools.product(PHASES, FATES, *[(False, True)] * len(FLAGS)))
    phases, fates, *flags = zip(*every, strict=True)
    features = BlockFeatures(
        identity=np.full(len(every), NO_IDENTITY, np.int8),
        phase=np.array([PHASES.index(phase) for phase in phases], np.int8),
        fate=np.array([FATES.index(fate) for fate in fates], np.int8),
        **{name: np.array(values) for name, values in zip(FLAGS, flags, strict=True)},
    )
    first = [
        next(
            number
            for number, rule in enumerate(LIFETIME_RULES)
            if phase in rule.phases
            and fate in rule.fates
            and all(getattr(rule, name) in (None, value) for name, value in zip(FLAGS, values, strict=True))
        )
        for phase, fate, *values in every
    ]
    found = [CATEGORIES[code] for code in categorize(features)]
    assert found == [LIFETIME_RULES[number].category for number in first]
    assert set(first) == set(range(len(LIFETIME_RULES)))


def test_the_numbers_of_identities_in_written_journals_stay() -> None:
    names = ["weight", "buffer", "gradient", "optimizer_state", "input"]
    names += ["gathered_weight", "sharded_weight", "sharded_gradient", "sharded_optimizer_state"]
    names += ["leaf", "leaf_gradient", "held", "update", "communication_buffer", "held_outside_graphs"]
    names += ["earlier_weight", "earlier_buffer", "output", "cache"]
    assert {one.value: one.name.lower() for one in Identity} == dict(enumerate(names))


def test_every_category_of_sharded_training_has_one_without_sharding() -> None:
    """A category says in its name whether something is sharded; buffers of collectives are of communication."""
    for category, plain in UNSHARDED_CATEGORY.items():
        assert {category, plain} <= set(CATEGORIES)
        assert plain not in UNSHARDED_CATEGORY
        assert plain in (category.removeprefix("sharded_").removeprefix("gathered_"), "communication")
    assert {one for one in CATEGORIES if "sharded" in one or "gathered" in one} <= set(UNSHARDED_CATEGORY)
