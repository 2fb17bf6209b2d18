"""A census and a count of tensors end before their limit of CPU time, whatever the program keeps. The clock is fake."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpuledger.collect.adapter.program_objects import storage_of
from gpuledger.collect.flight import chains, element_sizes, graphs, tensor_count, time_limit
from gpuledger.collect.flight.census import Census
from gpuledger.collect.flight.element_sizes import MOST_INSIDE
from gpuledger.collect.flight.tensor_count import BUDGET_NS, TensorCount

pytestmark = pytest.mark.torch

MS = 1_000_000


class Clock:
    """CPU time that passes only when something is looked at."""

    def __init__(self) -> None:
        self.now_ns = 0

    def slows(self, function: Callable[..., Any], by_ns: int) -> Callable[..., Any]:
        """Return a function that does the same and takes some time."""

        def slowed(*arguments: Any) -> Any:
            self.now_ns += by_ns
            return function(*arguments)

        return slowed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time_limit, "thread_time_ns", lambda: made.now_ns)
    return made


class Listed(list[Any]):
    """A list of objects that takes some time to be freed."""

    def __init__(self, objects: list[Any], clock: Clock, freed_ns: int) -> None:
        super().__init__(objects)
        self._clock, self._freed_ns = clock, freed_ns

    def __del__(self) -> None:
        self._clock.now_ns += self._freed_ns


def listing(monkeypatch: pytest.MonkeyPatch, clock: Clock, objects: list[Any], listed_ns: int) -> list[int]:
    """Let the process have some objects. Return a list that gets an entry each time that they are listed."""
    listed: list[int] = []

    def get_objects(generation: int) -> list[Any]:
        if generation < 2:
            return []
        listed.append(listed_ns)
        clock.now_ns += listed_ns
        return Listed(objects, clock, round(0.36 * listed_ns))

    monkeypatch.setattr(gc, "get_objects", get_objects)
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: 1_000_000)
    monkeypatch.setattr(TensorCount, "listing_ns", 10.0)
    return listed


@pytest.mark.parametrize("listed_ms", [0, 10, 20, 30])
def test_a_count_leaves_time_to_free_the_list_of_objects(
    listed_ms: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing(monkeypatch, clock, [torch.ones(1) for _ in range(1000)] * 30, listed_ms * MS)
    monkeypatch.setattr(tensor_count, "storage_of", clock.slows(storage_of, 3_000))
    count = TensorCount()
    assert not count.is_complete
    assert not count.groups
    assert 0.8 * BUDGET_NS < count.took_ns <= BUDGET_NS


def test_a_count_with_enough_time_is_complete(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    listing(monkeypatch, clock, [torch.ones(1) for _ in range(1000)], 10 * MS)
    count = TensorCount()
    assert count.is_complete
    assert count.groups == {(-1, "leaf"): [1000, 4000]}


def test_objects_are_not_listed_if_that_is_expected_to_take_too_long(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = listing(monkeypatch, clock, [torch.ones(1)], 20 * MS)
    assert TensorCount().is_complete
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: 2_000_000)  # twice as many objects: 60 ms with freeing
    count = TensorCount()
    assert not count.is_complete
    assert count.took_ns == 0
    assert len(listed) == 1


def test_the_first_list_is_not_made_with_very_many_objects(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = listing(monkeypatch, clock, [], 0)
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: 10_000_000)
    assert not TensorCount().is_complete
    assert not listed


class Link:
    """An element of a chain."""

    def __init__(self, after: Link | None) -> None:
        self.after = after


def graph() -> torch.Tensor:
    total = torch.ones(1, requires_grad=True)
    for _ in range(3000):
        total = total + 1
    return total


def chain() -> Link:
    first = Link(None)
    for _ in range(3000):
        first = Link(first)
    return first


def census_of_many(make: Callable[[], object]) -> Census:
    """Without ``assert``, for which pytest would write a call of ``locals()`` into it."""
    kept = {number: make() for number in range(40)}
    census = Census(1)
    del kept
    return census


def census_of_grown_lists() -> Census:
    kept = {f"list {number}": [element() for _ in range(40)] for number in range(20)}
    first = Census(1)
    for one in kept.values():
        one.extend(element() for _ in range(40))
    return Census(2, first, 1 << 30)


def element() -> list[Any]:
    return [[number, 1.5] for number in range(20)]


@pytest.mark.parametrize(("make", "module", "name"), [(graph, graphs, "following_nodes"), (chain, chains, "_linked")])
def test_a_census_ends_within_a_long_graph_or_chain(
    make: Callable[[], object], module: Any, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would take 60 ms."""
    monkeypatch.setattr(module, name, clock.slows(getattr(module, name), 20_000))
    census = census_of_many(make)
    assert 0 < census.took_ns <= BUDGET_NS
    assert not census._has_all_names


def test_a_census_ends_within_the_elements_that_have_grown(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last elements of each of the lists would take 20 ms."""
    monkeypatch.setattr(element_sizes, "_referents", clock.slows(element_sizes._referents, 250_000))
    census = census_of_grown_lists()
    assert 0 < census.took_ns <= BUDGET_NS


@pytest.mark.parametrize(
    "large",
    [
        [[number] for number in range(10_000)],
        dict(enumerate([[number] for number in range(10_000)])),
        deque([number] for number in range(10_000)),
    ],
    ids=["list", "dict", "deque"],
)
def test_of_a_large_element_only_the_end_is_listed(large: object) -> None:
    found = element_sizes._referents(large)
    assert len(found) < 2 * MOST_INSIDE
    assert [9_999] in found
