"""The cheapest combination that fits, chosen among programs whose memory and FLOPs follow a formula."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import InputError, UsageError
from gpuledger.simulate.advice.choose import Chooser, Followed
from gpuledger.simulate.advice.combination import (
    ACCUMULATED,
    EIGHT_BIT,
    FUSED,
    OPTIMIZERS,
    SMALLER,
    Applied,
    Combination,
    describe,
    divisors_of,
    families,
)
from gpuledger.simulate.catalogue import find_card

MIB = 1 << 20
UNAVAILABLE = {"checkpoint", "autocast", FUSED, EIGHT_BIT, "batch"}


def program(batch: int, fixed: int, each: int, without: frozenset[str] = frozenset()) -> Callable[..., Followed]:
    """Return how a program with a linear need of memory is followed. Expandable segments save a twentieth."""

    def follow(one: Combination) -> Followed:
        state = {"": 4, FUSED: 3, EIGHT_BIT: 1}[one.optimizer]
        size = each * batch // one.divisor // (4 if one.checkpoint else 1) // (2 if one.autocast else 1)
        size += fixed * (state + 2 + (one.parts == ACCUMULATED))
        time_s = (4 / 3 if one.checkpoint else 1.0) * (0.1 if one.autocast else 1.0)
        changed = ("AdamW",) if one.optimizer and one.optimizer not in without else ()
        blocks = 12 if one.checkpoint and "checkpoint" not in without else 0
        cast = one.autocast and "autocast" not in without
        applied = Applied(0 if "batch" in without else batch, blocks, changed, "bfloat16")
        sizes = {False: (size, size + 10), True: (size * 19 // 20, size * 19 // 20 + 10)}
        return Followed(sizes, time_s, {"bfloat16" if cast else "float32": 100}, applied)

    return follow


def every_fitting(follow: Callable[[Combination], Followed], limit: int, without: frozenset[str]) -> list[Combination]:
    """Return all combinations that fit, by trying each of them."""
    optimizers = [one for one in OPTIMIZERS if one not in without]
    divided = () if "batch" in without else tuple(product((ACCUMULATED, SMALLER), divisors_of(64)))
    found = []
    for checkpoint, autocast, optimizer, expandable in product((False, True), (False, True), optimizers, (False, True)):
        if (checkpoint and "checkpoint" in without) or (autocast and "autocast" in without):
            continue
        for parts, divisor in (("", 1), *divided):
            one = Combination(checkpoint, autocast, optimizer, divisor, parts, expandable)
            if follow(one).sizes_bytes[expandable][1] <= limit:
                found.append(one)
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 50), st.integers(10, 4000), st.sets(st.sampled_from(sorted(UNAVAILABLE))))
def test_the_choice_is_the_cheapest_of_all(fixed: int, each: int, limit: int, missing: set[str]) -> None:
    without = frozenset(missing)
    follow = program(64, fixed, each, without)
    choice = Chooser(follow, limit).choose()
    fitting = every_fitting(follow, limit, without)
    assert (choice.best is not None) == bool(fitting)
    if choice.best is not None:
        assert choice.best.upper_bytes <= limit
        expected = min(fitting, key=lambda one: (one.names != (), round(follow(one).time_s, 3), one.weight))
        assert choice.best.combination == expected
    assert all(one.fits == (one.upper_bytes <= limit) for one in choice.tried)
    if Combination() not in fitting:
        assert len(choice.unavailable) == len(without)


def test_few_programs_are_followed() -> None:
    followed: list[Combination] = []
    plain = program(64, 10, 100)

    def follow(one: Combination) -> Followed:
        followed.append(one)
        return plain(one)

    Chooser(follow, 1 << 40).choose()
    assert followed == [Combination()]
    followed.clear()
    choice = Chooser(follow, 400).choose()
    assert choice.best is not None
    assert len(followed) == len(set(followed)) < 25


def test_what_does_not_fit_at_its_upper_bound_is_not_chosen() -> None:
    """The estimate fits, the upper bound does not."""
    follow = program(1, 100, 0, frozenset(UNAVAILABLE))
    size_bytes = follow(Combination()).sizes_bytes[True][0]
    assert Chooser(follow, size_bytes + 9).choose().best is None
    best = Chooser(follow, size_bytes + 10).choose().best
    assert best is not None
    assert best.combination == Combination(expandable=True)


def test_a_change_that_fails_is_named_and_left_out() -> None:
    plain = program(64, 10, 100)

    def follow(one: Combination) -> Followed:
        return Followed(why_not="CheckpointError: other metadata") if one.checkpoint else plain(one)

    choice = Chooser(follow, 300).choose()
    assert choice.best is not None
    assert not any(one.combination.checkpoint for one in choice.tried)
    assert choice.unavailable == ("checkpoint: CheckpointError: other metadata",)
    with pytest.raises(InputError, match="no step"):
        Chooser(lambda _one: Followed(why_not="no step"), 300).choose()


@pytest.mark.parametrize(
    ("batch", "expected"), [(0, ()), (1, ()), (2, (2,)), (7, (7,)), (12, (2, 4, 12)), (32, (2, 4, 8, 16, 32))]
)
def test_parts_of_a_batch_are_equal(batch: int, expected: tuple[int, ...]) -> None:
    assert divisors_of(batch) == expected


def test_less_intrusive_changes_come_first() -> None:
    made = families(optimizers=OPTIMIZERS, divides=True)
    assert made[:4] == (
        Combination(),
        Combination(expandable=True),
        Combination(optimizer=FUSED),
        Combination(parts=ACCUMULATED),
    )
    assert len(made) == len(set(made)) == 18


def test_each_change_is_a_sentence() -> None:
    every = Combination(True, True, EIGHT_BIT, 4, ACCUMULATED, True)
    words = list(describe(every, Applied(32, 12, ("AdamW",), "float16")))
    assert words == [
        "Use batches of 8 and accumulate the gradients of 4 per step.",
        "Run the model's forward under torch.autocast('cuda', torch.float16) with torch.amp.GradScaler.",
        "Call each of the 12 repeated blocks with torch.utils.checkpoint(use_reentrant=False).",
        "Replace AdamW by a version with states of 8 bits, as bitsandbytes has.",
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    ]
    assert list(describe(Combination(), Applied())) == []


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (("train.py", "--batch-size", "8"), "--batch-size"),
        (("train.py", "--lr", "1", "--per_device_train_batch_size=8"), "--per_device_train_batch_size"),
        (("train.py", "-b", "8"), "-b"),
        (("train.py", "--eval_batch_size", "8", "--bs", "4"), "--bs"),
        (("train.py", "--batch-size", "many"), ""),
        (("train.py", "--batch-size"), ""),
        (("train.py", "--max-batches-per-epoch", "8"), ""),
        (("train.py", "--num_batches", "8"), ""),
    ],
)
def test_the_batch_size_is_found_among_arguments(program: tuple[str, ...], expected: str) -> None:
    pytest.importorskip("torch")
    from gpuledger.simulate.advice.advise import argument_of_batches

    assert argument_of_batches(program) == expected


def test_memory_that_cannot_be_is_refused(tmp_path: object) -> None:
    pytest.importorskip("torch")
    from gpuledger.simulate.advice.advise import advise_program
    from gpuledger.simulate.estimate.run import Order

    order = Order((__file__,), find_card("l4"))
    with pytest.raises(UsageError, match="a process on l4 can use"):
        advise_program(order, 80 << 30)
    with pytest.raises(UsageError, match="context and libraries alone"):
        advise_program(order, 100 * MIB)
