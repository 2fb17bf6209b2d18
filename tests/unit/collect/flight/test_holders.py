"""What containers of the program hold is known by their last elements."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gpuledger.collect.flight import census
from gpuledger.collect.flight.census import Census
from gpuledger.collect.flight.chains import chain_below
from gpuledger.collect.flight.holders import Key, Named, _content_of, named_objects
from gpuledger.collect.flight.time_limit import TimeLimit

pytestmark = pytest.mark.torch

BLOCK = torch.ones(2)


def used(*_: Any, **__: Any) -> None:
    pass


def in_closure() -> Callable[[], object]:
    block = BLOCK
    return lambda: block


@pytest.mark.parametrize(
    "one",
    [
        BLOCK,
        in_closure(),
        lambda block=BLOCK: block,
        lambda *, block=BLOCK: block,
        functools.partial(used, BLOCK),
        functools.partial(used, block=BLOCK),
        [1, (BLOCK,)],
    ],
    ids=["tensor", "closure", "default", "keyword default", "partial", "partial by keyword", "nested"],
)
def test_a_container_of_what_keeps_tensors(one: object) -> None:
    assert _content_of([one]) == "tensor"
    assert _content_of({1: one}) == "tensor"


@pytest.mark.parametrize("one", [1, used, lambda number=1: number, functools.partial(used, 1)])
def test_a_container_of_other_things(one: object) -> None:
    assert _content_of([one]) == ""


class Node:
    def __init__(self, value: object, before: Node | None) -> None:
        self.value, self.before = value, before


def linked_list() -> Node:
    head = None
    for number in range(5):
        head = Node(number, head)
    assert head is not None
    return head


def chained_exceptions() -> BaseException:
    last: BaseException | None = None
    for number in range(5):
        try:
            raise ValueError(number) from last
        except ValueError as error:
            last = error
    assert last is not None
    return last


def node_of_a_cycle() -> Node:
    node = Node(1, None)
    node.before = node
    return node


def chained_functions() -> Callable[[], float]:
    def after(before: Callable[[], float]) -> Callable[[], float]:
        return lambda: before() + 1

    last: Callable[[], float] = float
    for _ in range(5):
        last = after(last)
    return last


@pytest.mark.parametrize(
    ("first", "size"),
    [(linked_list(), 5), (chained_exceptions(), 5), (chained_functions(), 5), (node_of_a_cycle(), 1)],
    ids=["nodes", "exceptions", "functions", "cycle"],
)
def test_objects_of_one_class_that_refer_to_the_next_are_a_chain(first: object, size: int) -> None:
    assert chain_below(first, TimeLimit(10**10))[0] == size


def test_the_state_of_an_optimizer_has_as_many_entries_as_it_has_parameters() -> None:
    found = {name: one for (name, *_), one in kept_by_an_optimizer().items()}
    assert found["state"].bound == 3


def kept_by_an_optimizer() -> dict[Key, Named]:
    """Without ``assert``, for which pytest would write a call of ``locals()`` into it."""
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    trainer = SimpleNamespace(optimizer=torch.optim.Adam(weights))
    found, _ = named_objects(TimeLimit(10**10))
    del trainer
    return found


def kept_by_functions() -> dict[Key, Named]:
    hooks = [lambda *_, saved=[BLOCK] * 2: saved, functools.partial(used, [BLOCK] * 3, later=[BLOCK] * 4)]
    found, _ = named_objects(TimeLimit(10**10))
    del hooks
    return found


def test_what_functions_keep_has_the_name_of_the_argument() -> None:
    found = {(one.name, one.where): one.size for one in kept_by_functions().values()}
    assert found["saved", "default of <lambda>"] == 2
    assert found["later", "argument of a partial"] == 4
    assert found["hooks", "local variable of kept_by_functions"] == 3


def kept_by_finalizers() -> dict[Key, Named]:
    owner = Node(1, None)
    weakref.finalize(owner, used, BLOCK)
    return named_objects(TimeLimit(10**10))[0]


def test_arguments_of_finalizers_and_modules_of_a_list_have_a_name() -> None:
    assert "weakref.finalize._registry" in {one.path for one in kept_by_finalizers().values()}
    assert "adapters._modules" in {one.path for one in kept_by_a_module_list().values()}


def kept_by_a_module_list() -> dict[Key, Named]:
    adapters = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    found, _ = named_objects(TimeLimit(10**10))
    del adapters
    return found


class Fit:
    def __init__(self, owner: Run) -> None:
        self.owner = owner
        self.losses: list[int] = []

    def paths(self) -> set[str]:
        return {one.path for one in named_objects(TimeLimit(10**10))[0].values()}


class Run:
    def __init__(self) -> None:
        self.fit = Fit(self)

    def paths(self) -> set[str]:
        return self.fit.paths()


def paths_with_a_variable() -> set[str]:
    experiment = Run()
    return experiment.paths()


def paths_without_a_variable() -> set[str]:
    return Run().paths()


def test_what_self_holds_has_the_name_of_the_variable_that_leads_to_it() -> None:
    """Without one, it has the name of the class of the outermost ``self``. Each of the two objects has the other."""
    assert "experiment.fit.losses" in paths_with_a_variable()
    assert "Run.fit.losses" in paths_without_a_variable()
    both = paths_with_a_variable() | paths_without_a_variable()
    assert not any("\0" in path or path.startswith("Fit") for path in both)


def lists_of_hooks() -> Any:
    """Hooks of many modules keep outputs in a list for each module, and no list holds much of it."""
    seen: dict[str, list[torch.Tensor]] = {f"layer.{number}": [] for number in range(12)}
    losses: list[float] = []
    before = Census(3)
    for _ in range(9):
        losses.append(0.0)
        for name in seen:
            seen[name].append(torch.zeros(1 << 16))
    return Census(12, before, 9 * 12 * (1 << 18)).as_fact()["holder"]


def test_lists_in_one_dict_are_told_as_the_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "NAMES_NS", 10**10)  # also on a busy machine
    monkeypatch.setattr(census, "BUDGET_NS", 10**10)
    holder = lists_of_hooks()
    assert (holder["kind"], holder["name"], holder["more"]) == ("dict", "seen", 9 * 12)
    assert holder["element_bytes"] == 1 << 18


def census_inside_a_call() -> Any:
    """The losses of all steps keep their graphs. In the middle of a call, its own list has larger elements."""
    losses: list[torch.Tensor] = []
    weight = torch.ones(4, requires_grad=True)
    before = Census(3)

    def forward() -> Any:
        outs = [torch.zeros(1 << 16) * weight[0] for _ in range(7)]
        found = Census(12, before, 1 << 30).as_fact()["holder"]
        del outs
        return found

    for _ in range(9):
        losses.append((weight * 2).sum())
    return forward()


def test_what_a_call_under_way_holds_has_not_grown_over_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "NAMES_NS", 10**10)
    monkeypatch.setattr(census, "BUDGET_NS", 10**10)
    holder = census_inside_a_call()
    assert (holder["kind"], holder["name"], holder["more"]) == ("list", "losses", 9)


def holders_after_a_short_census(
    seen: Callable[[dict[Key, Named]], dict[Key, Named]], patch: pytest.MonkeyPatch
) -> Any:
    """Return what has grown by two censuses after one that had not the time for all names."""
    outputs: list[torch.Tensor] = []
    with patch.context() as patched:
        patched.setattr(census, "named_objects", lambda limit: (seen(named_objects(limit)[0]), False))
        first = Census(10)
    outputs += [torch.zeros(1 << 16) for _ in range(10)]
    second = Census(20, first, 10 << 18)
    outputs += [torch.zeros(1 << 16) for _ in range(10)]
    return second.holder, Census(30, first, 20 << 18).holder


def test_a_list_that_was_empty_at_the_first_census_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the predictions of evaluations are before the first one."""
    monkeypatch.setattr(census, "NAMES_NS", 10**10)
    monkeypatch.setattr(census, "BUDGET_NS", 10**10)
    found = holders_after_a_short_census(lambda named: named, monkeypatch)
    assert [(one["name"], one["more"]) for one in found] == [("outputs", 10), ("outputs", 20)]
    assert [one["element_bytes"] for one in found] == [1 << 18, 1 << 18]


def test_a_list_that_the_first_census_has_not_reached_is_compared_with_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(census, "NAMES_NS", 10**10)
    monkeypatch.setattr(census, "BUDGET_NS", 10**10)
    before, after = holders_after_a_short_census(lambda _: {}, monkeypatch)
    assert before is None
    assert (after["name"], after["more"]) == ("outputs", 10)


class Refuses(type):
    """A class that is not compared with others."""

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = type.__hash__


class Strange(metaclass=Refuses):
    def __init__(self, value: object) -> None:
        self.value = value


class StrangeLayer(nn.Linear, metaclass=Refuses):
    pass


def kept_by_strange_objects() -> dict[Key, Named]:
    strange, layers = Strange([BLOCK] * 3), [StrangeLayer(2, 2) for _ in range(5)]
    found, _ = named_objects(TimeLimit(10**10))
    del strange, layers
    return found


def test_no_class_of_the_program_is_compared() -> None:
    found = {(one.name, one.where): one.size for one in kept_by_strange_objects().values()}
    assert found["value", "attribute of Strange"] == 3
    assert found["layers", "local variable of kept_by_strange_objects"] == 5
