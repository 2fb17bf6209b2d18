"""Scopes: their paths in threads, tasks and generators. Nothing is recorded here, and torch is not needed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import types
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

import gpuledger
from gpuledger.collect.attribution import scopes
from gpuledger.collect.attribution.scopes import current_path
from gpuledger.errors import UsageError

PRICE_LIMIT = 20
"""In entries of the standard library's ``suppress``: far below what a slip (an import, a lookup in torch) costs."""


# -- paths ----------------------------------------------------------------------------------------------------------


def test_scopes_append_and_leave_in_order() -> None:
    assert current_path() == ""
    with gpuledger.scope("a"):
        with gpuledger.scope("b/c"):
            assert current_path() == "a/b/c"
            with gpuledger.scope("alone", append=False), gpuledger.scope("d"):
                assert current_path() == "alone/d"
            assert current_path() == "a/b/c"
        assert current_path() == "a"
    assert current_path() == ""


def test_a_scope_is_printed_as_it_is_written() -> None:
    assert [repr(gpuledger.scope("a/b")), repr(gpuledger.scope("c", append=False))] == [
        "scope('a/b')",
        "scope('c', append=False)",
    ]


def test_an_exception_leaves_the_scope_and_goes_on() -> None:
    with pytest.raises(KeyError, match="mine"), gpuledger.scope("a"):
        raise KeyError("mine")
    assert current_path() == ""


def test_one_object_can_be_entered_again_inside_itself_and_in_many_threads() -> None:
    shared = gpuledger.scope("a")
    with shared, shared:
        assert current_path() == "a/a"
    ready = threading.Barrier(4)
    seen: list[list[str]] = []

    def enter(name: str) -> None:
        found = []
        with gpuledger.scope(name):
            ready.wait()
            with shared:
                ready.wait()
                found.append(current_path())
            ready.wait()
            found.append(current_path())
        seen.append([*found, current_path()])

    threads = [threading.Thread(target=enter, args=(str(number),)) for number in range(4)]
    with gpuledger.scope("main"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert current_path() == "main"
    assert sorted(seen) == [[f"{number}/a", str(number), ""] for number in range(4)]


def test_tasks_do_not_share_scopes() -> None:
    seen = []

    async def work(name: str) -> None:
        with gpuledger.scope(name):
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append((name, current_path()))

    async def main() -> None:
        with gpuledger.scope("main"):
            await asyncio.gather(work("a"), work("b"))
            seen.append(("", current_path()))

    asyncio.run(main())
    assert seen == [("a", "main/a"), ("b", "main/b")] * 3 + [("", "main")]


def test_a_decorated_function_runs_in_its_scope_and_keeps_its_name() -> None:
    @gpuledger.scope("deep")
    def path(times: int) -> str:
        """Say where."""
        return path(times - 1) if times else current_path()

    assert path(0) == "deep"
    assert path(2) == "deep/deep/deep"
    assert (path.__name__, path.__doc__) == ("path", "Say where.")
    assert current_path() == ""


def test_a_decorated_coroutine_leaves_its_scope_while_it_waits() -> None:
    seen = []

    @types.coroutine
    def pause() -> Generator[None, str, str]:
        return (yield)

    @gpuledger.scope("c")
    async def work() -> str:
        seen.append(current_path())
        got = await pause()
        seen.append(current_path())
        return got

    coroutine = work()
    coroutine.send(None)
    seen.append(current_path())
    with pytest.raises(StopIteration) as stop:
        coroutine.send("hello")
    assert stop.value.value == "hello"
    assert seen == ["c", "", "c"]
    assert current_path() == ""


def test_a_decorated_generator_leaves_its_scope_between_its_values() -> None:
    seen = []

    @gpuledger.scope("data")
    def batches() -> Generator[str, str, int]:
        try:
            got = yield current_path()
            seen.append((got, current_path()))
            try:
                yield "second"
            except KeyError:
                seen.append(("thrown", current_path()))
            yield "third"
            return 7
        finally:
            seen.append(("closed", current_path()))

    generator = batches()
    assert next(generator) == "data"
    assert current_path() == ""
    assert generator.send("hello") == "second"
    assert generator.throw(KeyError("x")) == "third"
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == 7
    abandoned = batches()
    next(abandoned)
    abandoned.close()
    assert seen == [("hello", "data"), ("thrown", "data"), ("closed", "data"), ("closed", "data")]
    assert current_path() == ""


def test_names_without_end_are_forgotten_and_stay_right() -> None:
    with gpuledger.scope("a"):
        for number in range(3 * scopes.LEVELS_KEPT):
            with gpuledger.scope(f"{number}"), gpuledger.scope("b"):
                assert current_path() == f"a/{number}/b"
        assert len(scopes.current_level().inside) <= scopes.LEVELS_KEPT
    assert current_path() == ""


def test_a_listener_hears_every_change_and_only_the_last_one_hears() -> None:
    first: list[tuple[str, bool]] = []
    last: list[tuple[str, bool]] = []
    hear_first, hear_last = (
        lambda level, scope, heard=heard: heard.append((level.path, scope is not None)) for heard in (first, last)
    )
    scopes.listen(hear_first)
    scopes.listen(hear_last)
    scopes.stop_listening(hear_first)
    with gpuledger.scope("a"), gpuledger.scope("b", append=False):
        pass
    fails = gpuledger.scope("d")(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError), gpuledger.scope("c"):
        fails()
    scopes.stop_listening(hear_last)
    with gpuledger.scope("e"):
        pass
    nested = [("a", True), ("b", True), ("a", False), ("", False)]
    assert (first, last) == ([], [*nested, ("c", True), ("c/d", True), ("c", False), ("", False)])


def test_a_scope_left_where_it_was_not_entered_changes_nothing() -> None:
    gpuledger.scope("a").__exit__(None, None, None)
    assert current_path() == ""


async def _asynchronous() -> AsyncGenerator[int, None]:
    yield 1


@pytest.mark.parametrize("decorated", [_asynchronous, int, "text"])
def test_what_cannot_be_decorated_is_said(decorated: Any) -> None:
    with pytest.raises(UsageError, match="scope 'a': can only decorate functions"):
        gpuledger.scope("a")(decorated)


@pytest.mark.parametrize("name", ["", None, 3, b"a"])
def test_a_name_is_a_text_that_is_not_empty(name: Any) -> None:
    with pytest.raises(UsageError, match="expected a name"):
        gpuledger.scope(name)


def test_a_scope_needs_no_torch() -> None:
    code = "import sys, gpuledger\nwith gpuledger.scope('a'): pass\nprint({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


PRICE = """
import timeit, gpuledger
def price(statement):
    return min(timeit.repeat(statement, "import contextlib; from gpuledger import scope", number=500, repeat=60))
print(price("with scope('a'): pass") / price("with contextlib.suppress(ValueError): pass"))
"""


def test_a_scope_is_cheap_where_nothing_records() -> None:
    assert float(subprocess.check_output([sys.executable, "-c", PRICE], text=True)) < PRICE_LIMIT
