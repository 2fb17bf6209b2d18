"""Names of objects are read from variables, without a reference to an object that stays."""

from __future__ import annotations

import asyncio
import dis
import functools
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from gpuledger.collect.adapter.program_objects import is_tensor
from gpuledger.collect.variables import names
from gpuledger.collect.variables.names import MOST, held_tensors, names_of, outer_names_of, second_names

pytestmark = pytest.mark.torch


class Thing:
    pass


class Holder:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def name(self) -> list[str]:
        return list(names_of([self.inner]).values())


def variable() -> list[str]:
    thing = Thing()
    holder = Holder({"key": thing})
    return [*names_of([thing]).values(), *names_of([holder]).values()]


def element() -> list[str]:
    holder = Holder({"key": Thing()})
    return list(names_of([holder.inner["key"]]).values())


def number() -> list[str]:
    things = [Thing()]
    return list(names_of([things[0]]).values())


def attribute_rather_than_a_number() -> list[str]:
    things = [Thing()]
    holder = Holder(Holder(things[0]))
    return [*names_of([things[0]]).values(), type(holder).__name__]


def of_self() -> list[str]:
    return Holder(Thing()).name()


def of_self_with_a_name() -> list[str]:
    holder = Holder(Thing())
    return holder.name()


def after_a_loop() -> list[str]:
    things = [Holder(Thing()), Holder(Thing())]
    for _place, one in enumerate(things):
        one.inner = Thing()
    return [name for thing in (things[1], things[1].inner) for name in names_of([thing]).values()]


def inner(module: Thing) -> list[str]:
    return [*names_of([module]).values(), *(name for _, name in outer_names_of([module]))]


def from_outside() -> list[str]:
    critic = Thing()
    return inner(critic)


def in_tasks() -> list[str]:
    """The function that has started the tasks waits for them, so that it is not one of those that run."""

    async def one_of_several(module: Thing, others: list[Thing]) -> list[str]:
        await asyncio.sleep(0)
        return [name for _, name in outer_names_of([module, *others])]

    async def all_of_them() -> list[str]:
        small, large = Thing(), Thing()
        tasks = [one_of_several(one, [other]) for one, other in ((small, large), (large, small))]
        return (await asyncio.gather(*tasks))[1]

    return asyncio.run(all_of_them())


def in_a_cycle() -> list[str]:
    cycle: list[Any] = [0]
    cycle.append(cycle)
    return list(names_of([Thing()]).values())


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (variable, ["thing", "holder"]),
        (element, ["holder.inner['key']"]),
        (number, ["things[0]"]),
        (attribute_rather_than_a_number, ["holder.inner.inner", "Holder"]),
        (of_self, ["Holder.inner"]),
        (of_self_with_a_name, ["holder.inner"]),
        (after_a_loop, ["things[1].inner", "things[1]"]),
        (from_outside, ["module", "critic"]),
        (in_tasks, ["large", "small"]),
        (in_a_cycle, []),
    ],
)
def test_the_nearest_name(function: Any, names: list[str]) -> None:
    found = function()
    assert sorted(found) == sorted(names)


def among_very_many() -> list[str]:
    many = [[Thing()] for _ in range(400) for _ in range(MOST // 200)]
    return list(names_of([many, many[-1]]).values())


def test_a_search_ends() -> None:
    assert among_very_many() == ["many"]


def of_numbers() -> list[str]:
    numbers: list[Any] = [0.5] * 400
    holder = Holder(dict.fromkeys(range(400), "text"))
    holder.__dict__.update({f"number_{place}": place for place in range(400)})
    tensor = torch.ones(1)
    numbers.append(tensor)
    return [name for name, one in held_tensors() if one is tensor]


def test_numbers_and_texts_inside_containers_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[object] = []
    monkeypatch.setattr(names, "is_tensor", lambda thing: looked_at.append(thing) or is_tensor(thing))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(of_numbers).result() == ["tensor"]
    assert any(isinstance(one, Holder) for one in looked_at)
    assert not {0.5, "text", 399} & {one for one in looked_at if isinstance(one, int | float | str)}


def test_a_loop_assigns_to_all_its_targets() -> None:
    source = "for a, (b, *c) in d: e = a\nfor f in a: pass\ng = [h for h in c]"
    assert {"a", "b", "c", "f"} <= second_names(compile(source, "loops", "exec"))
    assert not {"d", "e", "g"} & second_names(compile(source, "loops", "exec"))


def test_the_loops_of_a_function_are_read_once_and_it_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    instructions = dis.get_instructions
    monkeypatch.setattr(dis, "get_instructions", lambda code: read.append(code.co_name) or instructions(code))
    loop, plain = (compile(source, "loops", "exec") for source in ("for a in (): pass", "b = 'not a loop'"))
    assert [second_names(code) for code in (loop, plain, loop, plain)] == [{"a"}, set(), {"a"}, set()]
    assert read == ["<module>"]
    kept = weakref.ref(loop)
    del loop
    assert kept() is None


def test_arguments_that_a_function_passes_on_have_other_names() -> None:
    source = """
def passes_on(first, *args, key=0, **kwargs): return print(first, *args, **kwargs)
def passes_some(*args, **kwargs): return print(**kwargs)
def uses(*models): return [print(model) for model in models]
"""
    functions: dict[str, Any] = {}
    exec(source, functions)
    found = {name: second_names(functions[name].__code__) for name in ("passes_on", "passes_some", "uses")}
    assert found["passes_on"] == found["passes_some"] == {"args", "kwargs"}
    assert "models" not in found["uses"]


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@decorated
def with_a_copy(thing: Thing) -> list[list[tuple[object, str]]]:
    copied = [Thing()]
    return given_a_copy(thing, copied.pop())  # type: ignore[no-any-return]


@decorated
def given_a_copy(thing: Thing, /, *rest: Thing) -> list[list[tuple[object, str]]]:
    return [[(thing, "thing"), (rest[0], "rest[0]")], outer_names_of([thing, rest[0]])]


def test_a_decorator_s_function_names_nothing() -> None:
    """It would have one name for both."""
    expected, found = with_a_copy(Thing())
    assert found == expected


def of_all_elements() -> list[list[tuple[object, str]]]:
    things = {"first": [Thing(), Holder(0), Thing()], "others": (Thing(), Thing())}
    return [things["first"], outer_names_of([things["first"][0]])]  # type: ignore[list-item]


def test_a_name_of_an_element_is_found_with_those_beside_it() -> None:
    with ThreadPoolExecutor(1) as pool:  # pytest's own functions, outside of this one, hold thousands of objects
        (one, _, beside), found = pool.submit(of_all_elements).result()
    assert found == [(one, "things['first'][0]"), (beside, "things['first'][2]")]


def named_alike(number: int) -> list[str]:
    things = [Thing() for _ in range(3)]
    first, second = Thing(), Thing()
    pair = [first, second]

    def of_one(thing: Thing) -> dict[int, str]:
        return {id(one): name for one, name in outer_names_of([thing, things[1], things[2], first, second])}

    names = of_one(things[number])
    return [names[id(one)] for one in (*things, *pair)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_elements_of_a_container_have_names_of_one_kind(number: int) -> None:
    """Whichever of them a function was called with. Elements that all have variables have the names of these."""
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(named_alike, number).result()
    assert found == ["things[0]", "things[1]", "things[2]", "first", "second"]


SCORER = Thing()
HOLDER = Holder(Thing())


def scored(model: Thing) -> list[str]:
    return [name for _, name in outer_names_of([model, Thing()])]


def test_in_a_thread_the_names_of_its_module_come_before_those_of_its_function() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(scored, SCORER).result() == ["SCORER"]
        assert pool.submit(scored, Thing()).result() == ["model"]


def test_in_a_thread_a_method_has_the_name_of_a_global_variable() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(HOLDER.name).result() == ["HOLDER.inner"]


def test_what_a_function_of_another_thread_holds_has_its_name() -> None:
    """As the models of two trainings: each thread would name its own only, and the first one has no other then."""
    theirs, mine = Thing(), Thing()
    is_held, may_end = threading.Event(), threading.Event()

    def train(model: Thing) -> None:
        is_held.set()
        may_end.wait()
        del model

    def search(first: weakref.ref[Thing], model: Thing) -> list[str]:
        return [name for _, name in outer_names_of([first(), model, Thing()])]

    first = weakref.ref(theirs)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(train, theirs)
        is_held.wait()
        held = [theirs]
        del theirs
        try:
            assert pool.submit(search, first, mine).result() == ["model", "model"]
        finally:
            may_end.set()
    assert len(held) == 1


class Called(Thing):
    def names(self) -> list[str]:
        return [name for _, name in outer_names_of([self])]


def test_a_method_gives_no_name_to_the_object_that_it_is_called_on() -> None:
    def program() -> list[str]:
        layers = [Called(), Called()]
        return layers[0].names()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(program).result() == ["layers[0]", "layers[1]"]


def named_and_left() -> tuple[weakref.ref[Thing], int]:
    thing = Thing()
    return weakref.ref(thing), len(names_of([thing, Thing()]))


def test_nothing_is_kept() -> None:
    gc.collect()
    gc.disable()
    try:
        left = []
        for _ in range(3):  # what other tests have left behind can become garbage meanwhile, but not each time
            reference, count = named_and_left()
            assert (reference(), count) == (None, 1)
            left.append(gc.collect())
        assert min(left) == 0
    finally:
        gc.enable()
