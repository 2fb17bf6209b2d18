"""Observed functions do what they do unobserved: tracebacks, depth, identity, results."""

from __future__ import annotations

import inspect
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, FunctionType
from typing import Any

import observed_functions as functions
import pytest
import torch
from observing import Seen, observed, traceback_of

from gpuledger.collect.adapter import dynamo, instrument, observer, torch_entrances
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation
from gpuledger.collect.adapter.observer import Observer, fails_only

pytestmark = pytest.mark.torch


# -- what the program sees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [functions.raises, functions.raises_on_two_lines])
def test_tracebacks_are_the_same_to_the_column(function: Callable[..., Any]) -> None:
    bare = traceback_of(function, 1)
    with observed(function, Seen().observer):
        alone = traceback_of(function, 1)
        with observed(function, Seen().observer):
            both = traceback_of(function, 1)
    assert "~~^~~" in bare or "value\n" in bare  # columns are there to be compared
    assert (alone, both) == (bare, bare)


def test_a_wrong_call_says_what_it_says_bare() -> None:
    bare = traceback_of(functions.everything)
    with observed(functions.everything, Seen().observer):
        assert traceback_of(functions.everything) == bare


def test_the_recursion_limit_is_reached_as_deep_as_bare() -> None:
    bare = functions.recurses()
    seen = Seen()
    with observed(functions.recurses, seen.observer):
        observed_depth = functions.recurses()
        with observed(functions.recurses, Seen().observer):
            twice = functions.recurses()
    assert bare > 100
    assert observed_depth == twice == bare
    assert len(seen.calls) > bare  # it was told of them


def test_identity_name_signature_and_documentation_stay() -> None:
    function = functions.everything
    before = (id(function), str(inspect.signature(function)), function.__doc__, function.__qualname__, repr(function))
    code = function.__code__
    with observed(function, Seen().observer):
        now = (id(function), str(inspect.signature(function)), function.__doc__, function.__qualname__, repr(function))
        assert function.__code__ is not code
        assert function.__code__.co_qualname == code.co_qualname
    assert now == before
    assert function.__code__ is code


def test_warnings_and_frames_name_the_same_place() -> None:
    def places() -> list[tuple[str, int, str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            functions.warns()
            functions.warns_caller()
        return [(one.filename, one.lineno, functions.asks_who_calls()) for one in caught]

    bare = places()
    with (
        observed(functions.warns, Seen().observer),
        observed(functions.warns_caller, Seen().observer),
        observed(functions.asks_who_calls, Seen().observer),
    ):
        assert places() == bare


# -- what the observer is told ----------------------------------------------------------------------------------------


def test_the_observer_is_told_every_parameter_in_order() -> None:
    seen = Seen()
    with observed(functions.everything, seen.observer):
        assert functions.everything(1) == (1, 2, (), 3, {})
        assert functions.everything(1, 5, 6, 7, c=8, d=9) == (1, 5, (6, 7), 8, {"d": 9})
    assert [call for call in seen.calls if call[0] == "enter"] == [
        ("enter", 1, 2, (), 3, {}),
        ("enter", 1, 5, (6, 7), 8, {"d": 9}),
    ]


@pytest.mark.parametrize("number", [-1, 0, 1, 2, 5])
def test_every_return_is_left_once(number: int) -> None:
    bare = functions.early(number)
    functions.finished.clear()
    seen = Seen()
    with observed(functions.early, seen.observer):
        result = functions.early(number)
    assert result == bare
    assert seen.calls == [("enter", number), ("leave", bare)]


def test_falling_off_the_end_leaves_with_none() -> None:
    seen = Seen()
    with observed(functions.returns_nothing, seen.observer):
        functions.returns_nothing(3)
    assert seen.calls == [("enter", 3), ("leave", None)]


def test_an_exception_fails_and_goes_on() -> None:
    seen = Seen()
    with observed(functions.raises, seen.observer), pytest.raises(ZeroDivisionError):
        functions.raises(1)
    assert seen.calls == [("enter", 1), ("fail",)]


def test_an_exception_that_is_caught_inside_does_not_fail() -> None:
    bare = functions.catches(1)
    seen = Seen()
    with observed(functions.catches, seen.observer):
        assert functions.catches(1) == bare
    assert [call[0] for call in seen.calls] == ["enter", "leave"]


def test_without_a_token_neither_leave_nor_fail_is_called() -> None:
    told: list[str] = []
    silent = Observer(lambda *_: None, lambda *_: told.append("leave"), lambda _: told.append("fail"))
    with observed(functions.everything, silent), observed(functions.raises, silent):
        functions.everything(1)
        with pytest.raises(ZeroDivisionError):
            functions.raises(1)
    assert told == []


def test_inner_functions_and_classes_are_left_alone() -> None:
    seen = Seen()
    with observed(functions.inner_functions, seen.observer):
        assert functions.inner_functions(4) == [8, 5, 4]
    assert [call[0] for call in seen.calls] == ["enter", "leave"]


def test_methods_with_super_and_class_are_observed_through_bound_methods() -> None:
    greeter = functions.Greeter()
    bound = greeter.greet
    seen = Seen()
    with observed(functions.Greeter.greet, seen.observer), observed(functions.Greeter.__call__, seen.observer):
        assert bound() == "base and Greeter"
        assert greeter(1, self_=2) == ((1,), {"self_": 2})
    assert [call for call in seen.calls if call[0] == "enter"] == [
        ("enter", greeter),
        ("enter", greeter, (1,), {"self_": 2}),
    ]


# -- several observers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [functions.with_a_default_function, functions.WithADefaultFunction.method])
def test_code_beside_a_function_is_not_taken_for_its_own(function: Callable[..., int]) -> None:
    seen = Seen()
    arguments = (None, 1) if "self" in inspect.signature(function).parameters else (1,)
    with observed(function, seen.observer):
        assert function(*arguments) == 2
    assert len(seen.calls) > 0


def test_observers_nest() -> None:
    told: list[Any] = []
    inner, outer = Seen("inner ", told), Seen("outer ", told)
    with (
        observed(functions.returns_nothing, inner.observer),
        observed(functions.returns_nothing, outer.observer, outermost=True),
    ):
        functions.returns_nothing(1)
    assert [call[0] for call in told] == ["outer enter", "inner enter", "inner leave", "outer leave"]


def test_all_fail_the_innermost_first() -> None:
    told: list[Any] = []
    with (
        observed(functions.raises, Seen("outer ", told).observer, Seen("inner ", told).observer),
        pytest.raises(ZeroDivisionError),
    ):
        functions.raises(1)
    assert [call[0] for call in told] == ["outer enter", "inner enter", "inner fail", "outer fail"]


def test_one_is_removed_and_the_other_stays() -> None:
    first, second = Seen(), Seen()
    one, other = (Observation(functions.everything, seen.observer) for seen in (first, second))
    one.remove()
    one.remove()
    functions.everything(1)
    other.remove()
    functions.everything(2)
    assert first.calls == []
    assert [call[0] for call in second.calls] == ["enter", "leave"]


def test_an_observer_put_in_during_enter_sees_the_call() -> None:
    late = Seen()
    made: list[Observation] = []

    def enter(*_: Any) -> None:
        if not made:
            made.append(Observation(functions.everything, late.observer))

    with observed(functions.everything, Observer(enter, hands_over=True)):
        functions.everything(1)
        made[0].remove()
    assert [call[0] for call in late.calls] == ["enter", "leave"]


def test_without_handing_over_it_sees_the_next_call() -> None:
    late = Seen()
    made: list[Observation] = []

    def enter(*_: Any) -> None:
        if not made:
            made.append(Observation(functions.everything, late.observer))

    with observed(functions.everything, Observer(enter)):
        functions.everything(1)
        assert late.calls == []
        functions.everything(2)
        made[0].remove()
    assert [call[0] for call in late.calls] == ["enter", "leave"]


def test_removed_during_a_call_it_still_ends_with_it() -> None:
    told: list[str] = []
    made: list[Observation] = []

    def enter(*_: Any) -> str:
        made[0].remove()
        return "token"

    code = functions.everything.__code__
    made.append(Observation(functions.everything, Observer(enter, lambda token, _: told.append(token))))
    functions.everything(1)
    assert told == ["token"]
    assert functions.everything.__code__ is code


def test_observers_in_several_threads_get_their_own_tokens() -> None:
    wrong: list[Any] = []
    observer = Observer(
        lambda *parameters: (threading.get_ident(), parameters[0]),
        lambda token, result: (token == (threading.get_ident(), result[0])) or wrong.append(token),
    )

    def call() -> None:
        for number in range(300):
            functions.everything(number)

    with observed(functions.everything, observer):
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


# -- functions that cannot be observed --------------------------------------------------------------------------------


class Callable_:
    def __call__(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (functions.from_text["without_source"], "No such file"),
        (functions.closing(), "variables of a function around it"),
        (functions.awaits, "no plain function"),
        (len, "not written in Python"),
        (Callable_(), "not written in Python"),
        (functions.a_lambda, "no plain function"),
    ],
    ids=["no file", "closure", "coroutine", "built in", "object", "lambda"],
)
def test_what_cannot_be_observed_says_why(function: Any, why: str) -> None:
    code = getattr(function, "__code__", None)
    with pytest.raises(CannotInstrumentError, match=why):
        Observation(function, Seen().observer)
    assert getattr(function, "__code__", None) is code


@pytest.mark.parametrize("changed", ["a - 1", "a + 2", "a + 1.0", "b + 1"])
def test_a_file_that_has_changed_since_is_noticed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    place = tmp_path / "changing.py"
    place.write_text("def changes(a):\n    return a + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import changing  # type: ignore[import-not-found]

    place.write_text(f"def changes(a):\n    return {changed}\n")
    try:
        with pytest.raises(CannotInstrumentError, match="not what was compiled"):
            Observation(changing.changes, Seen().observer)
    finally:
        del sys.modules["changing"]


def other(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> str:
    return "of the program"


def test_a_function_that_somebody_else_changes_stays_theirs() -> None:
    code = functions.everything.__code__
    seen = Seen()
    observation = Observation(functions.everything, seen.observer)
    try:
        functions.everything.__code__ = other.__code__
        result: object = functions.everything(1)
        assert result == "of the program"
        observation.remove()
        assert functions.everything.__code__ is other.__code__
        with pytest.raises(CannotInstrumentError, match="was replaced by the program"):
            Observation(functions.everything, seen.observer)
        assert seen.calls == []
    finally:
        functions.everything.__code__ = code


def test_two_threads_that_observe_a_function_first_share_its_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes long enough for the other thread to come in between."""

    def slowly(function: Any, *, only_fails: bool, compile_observed: Any = instrument._compile_observed) -> Any:
        made = compile_observed(function, only_fails=only_fails)
        time.sleep(0.05)
        return made

    monkeypatch.setattr(instrument, "_compile_observed", slowly)
    monkeypatch.setattr(instrument, "_sites", {})
    plain, seen = functions.raises.__code__, [Seen(), Seen()]
    made: list[Observation] = []
    threads = [
        threading.Thread(target=lambda one=one: made.append(Observation(functions.raises, one.observer)))
        for one in seen
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (site,) = instrument._sites.values()
    assert len(site.observers.installed) == 2
    for one in made:
        one.remove()
    assert functions.raises.__code__ is plain


def test_the_observed_code_is_one_object_whoever_observes() -> None:
    codes = set()
    for observers in ([Seen().observer], [Seen().observer, Seen().observer], [Observer(lambda *_: None)]):
        with observed(functions.everything, *observers):
            codes.add(functions.everything.__code__)
    assert len(codes) == 1


def test_an_observer_of_exceptions_alone_sees_each_one_and_nothing_else() -> None:
    errors: list[BaseException] = []
    bare, plain = traceback_of(functions.raises, 1), functions.raises.__code__
    alone = fails_only(errors.append, lambda _: False)
    with observed(functions.raises, alone):
        assert traceback_of(functions.raises, 1) == bare
        failing = functions.raises.__code__
        with observed(functions.raises, Seen().observer):
            assert functions.raises.__code__ is not failing
            assert traceback_of(functions.raises, 1) == bare
        assert functions.raises.__code__ is failing
    assert functions.raises.__code__ is plain
    assert len(errors) == 2
    with observed(functions.everything, alone):
        functions.everything(1, 2)
    assert len(errors) == 2


def calls_of_ours(function: Callable[[], Any]) -> list[str]:
    """Return the names of gpuledger's functions that run in a call."""
    names: list[str] = []

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith("gpuledger."):
            names.append(frame.f_code.co_name)

    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names


def test_nothing_of_ours_runs_in_a_call_that_does_not_raise_for_an_observer_of_exceptions_alone() -> None:
    errors: list[BaseException] = []
    alone = fails_only(errors.append, lambda _: False)
    module, call = torch.nn.Identity(), torch_entrances.module_call()
    ends = torch_entrances.end_of_timed()

    def end(fails: bool) -> None:
        with suppress(ZeroDivisionError), torch.profiler.record_function("block"):
            module(1 // (not fails))

    assert isinstance(call, FunctionType)
    with observed(call, alone), observed(ends, alone):
        assert call.__code__ in instrument._sites[call]._codes.values()
        assert call.__code__.co_varnames == instrument._sites[call]._plain.co_varnames
        assert calls_of_ours(lambda: end(fails=False)) == []
        assert calls_of_ours(lambda: end(fails=True)) != []
        with observed(call, Seen().observer):
            assert calls_of_ours(lambda: end(fails=False)) != []
    assert [type(error) for error in errors] == [ZeroDivisionError]


@pytest.mark.parametrize("is_absorbed", [True, False])
def test_an_error_of_ours_after_an_exception_is_handled(monkeypatch: pytest.MonkeyPatch, is_absorbed: bool) -> None:
    """Of the observer of all observers: each one handles its own."""

    def raise_ours(_: Any) -> None:
        raise LookupError

    alone = fails_only(lambda _: None, lambda error: is_absorbed and isinstance(error, LookupError))
    monkeypatch.setattr(observer, "_fail_all", raise_ours)
    with observed(functions.raises, alone), pytest.raises(ZeroDivisionError if is_absorbed else LookupError):
        functions.raises(1)


def test_an_observer_of_exceptions_alone_does_not_change_what_others_see() -> None:
    """One that another one installs as it enters does not see this call."""
    alone = fails_only(lambda _: None, lambda _: False)
    for some in ([], [alone]):
        second = Seen()
        late: list[Observation] = []

        def enter(*_: Any, second: Seen = second, late: list[Observation] = late) -> None:
            late.append(Observation(functions.returns_nothing, second.observer))

        with observed(functions.returns_nothing, *some, Observer(enter)):
            functions.returns_nothing(1)
        late[0].remove()
        assert second.calls == []


def test_an_observer_that_comes_during_a_call_is_not_told_of_its_exception() -> None:
    seen = Seen()
    errors: list[BaseException] = []
    late: list[Observation] = []

    class Installing:
        def __truediv__(self, _: object) -> int:
            late.append(Observation(functions.raises, seen.observer))
            raise ValueError

    with observed(functions.raises, fails_only(errors.append, lambda _: False)):
        with pytest.raises(ValueError):  # noqa: PT011
            functions.raises(Installing())
        late[0].remove()
    assert (seen.calls, len(errors)) == ([], 1)


@pytest.mark.parametrize("compiled_before", [False, True])
def test_code_for_exceptions_stays_if_the_first_compiled_code_can_depend_on_it(
    monkeypatch: pytest.MonkeyPatch, compiled_before: bool
) -> None:
    function, plain = functions.returns_nothing, functions.returns_nothing.__code__
    monkeypatch.setattr(dynamo, "compiled_frames", lambda: int(compiled_before))
    with observed(function, fails_only(lambda _: None, lambda _: False)):
        failing = function.__code__
        monkeypatch.setattr(dynamo, "compiled_frames", lambda: 1)
    assert function.__code__ is (plain if compiled_before else failing) is not (failing if compiled_before else plain)
    assert not instrument.is_observed_for_good(function)
    monkeypatch.setattr(dynamo, "compiled_frames", lambda: 0)
    with observed(function, Seen().observer):
        assert function.__code__ not in (plain, failing)
    assert function.__code__ is plain


@pytest.mark.parametrize("compiled_before", [False, True])
def test_code_stays_observed_if_the_first_compiled_code_can_depend_on_it(
    monkeypatch: pytest.MonkeyPatch, compiled_before: bool
) -> None:
    plain = functions.returns_nothing.__code__
    monkeypatch.setattr(dynamo, "compiled_frames", lambda: int(compiled_before))
    with observed(functions.returns_nothing, Seen().observer):
        inside = functions.returns_nothing.__code__
        monkeypatch.setattr(dynamo, "compiled_frames", lambda: 1)
    assert functions.returns_nothing.__code__ is (plain if compiled_before else inside)
    assert instrument.is_observed_for_good(functions.returns_nothing) is not compiled_before
    functions.returns_nothing(1)
    monkeypatch.setattr(dynamo, "compiled_frames", lambda: 0)
    seen = Seen()
    with observed(functions.returns_nothing, seen.observer):
        functions.returns_nothing(1)
    assert functions.returns_nothing.__code__ is plain
    assert not instrument.is_observed_for_good(functions.returns_nothing)
    assert [call[0] for call in seen.calls] == ["enter", "leave"]


class _Counts(torch.nn.Module):
    """A module whose buffer each call replaces."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x + self.calls


def test_a_function_without_a_return_is_traced_once_as_it_was_written() -> None:
    seen, model = Seen(), _Counts()
    with observed(torch_entrances.register_buffer(), seen.observer):
        result = torch.compile(model, backend="eager", fullgraph=True)(torch.zeros(()))
        assert seen.calls == []
        _Counts()
    assert (result.item(), model.calls.item()) == (1, 1)
    assert [call[0] for call in seen.calls] == ["enter", "leave"]
