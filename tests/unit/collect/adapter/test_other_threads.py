"""Looking at other threads keeps nothing of this thread alive, and reads gradients only if nobody writes them."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from present import present

from gpuledger.collect.adapter import other_threads
from gpuledger.collect.adapter.frames import RESULT, Uncollected, frames_of_other_threads
from gpuledger.collect.adapter.other_threads import (
    Exclusive,
    _is_harmless,
    do_others_compute,
    gradients_of,
    take_all,
    tracked_objects,
)

pytestmark = pytest.mark.torch


class Thing:
    """Something that can be referred to weakly."""


def wait_for(over: threading.Event) -> None:
    over.wait()


@pytest.fixture
def waiting() -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=wait_for, args=(over,))
    thread.start()
    gc.disable()
    yield
    gc.enable()
    over.set()
    thread.join()


@pytest.mark.usefixtures("waiting")
def test_no_frame_of_this_thread_is_given() -> None:
    names = {frame.f_code.co_name for frame in frames_of_other_threads()}
    assert "wait_for" in names
    assert "test_no_frame_of_this_thread_is_given" not in names


def read_gradient(weight: torch.Tensor) -> list[torch.Tensor | None] | None:
    return gradients_of([weight])


@pytest.mark.usefixtures("waiting")
def test_gradients_are_read_beside_threads_that_wait() -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.sum().backward()
    found = gradients_of([weight, torch.ones(2, requires_grad=True)])
    assert found is not None
    assert found[0] is weight.grad
    assert found[1] is None


@pytest.mark.parametrize("was_on", [True, False])
def test_no_garbage_is_collected_during_a_call(was_on: bool) -> None:
    """Python can hang if that happens while it looks at all threads."""
    if not was_on:
        gc.disable()
    try:
        assert list(Uncollected(gc.isenabled).steps)[RESULT] is False
        assert gc.isenabled() is was_on
        failing = Uncollected(partial(int, "no number"))
        with pytest.raises(ValueError, match="no number"):
            list(failing.steps)
        assert not gc.isenabled()
        failing.restore()
        assert gc.isenabled() is was_on
        with pytest.raises(ZeroDivisionError):
            gradients_of([0], (1).__truediv__)
        assert gc.isenabled() is was_on
    finally:
        gc.enable()


@pytest.mark.parametrize("look", [lambda: gradients_of([torch.zeros(1)]), lambda: list(frames_of_other_threads())])
def test_garbage_is_collected_again_though_the_program_refuses_a_look_at_its_threads(
    look: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an audit hook of the program can."""

    def refuse() -> None:
        raise PermissionError

    assert gc.isenabled()
    monkeypatch.setattr(sys, "_current_frames", refuse)
    try:
        with pytest.raises(PermissionError):
            look()
        assert gc.isenabled()
    finally:
        gc.enable()


def test_a_tuple_that_is_being_made_is_not_kept() -> None:
    """Before Python 3.14.10, making it fails if anything else refers to it, as a list of all objects does."""
    held: list[Any] = []

    def numbers(keep: Callable[[], Any]) -> Iterator[int]:
        held.append(keep())
        yield from range(100)

    with pytest.raises(SystemError) if sys.version_info < (3, 14) else suppress(SystemError):
        tuple(numbers(gc.get_objects))
    held.clear()
    assert tuple(numbers(tracked_objects)) == tuple(range(100))
    held.clear()
    old = Thing()
    gc.collect()
    new = Thing()
    young_objects, old_objects = tracked_objects()
    assert any(one is new for one in young_objects)
    assert any(one is old for one in old_objects)


@pytest.mark.usefixtures("waiting")
def test_threads_that_wait_do_not_compute() -> None:
    assert not do_others_compute()


@pytest.mark.parametrize("in_python", [True, False])
def test_a_thread_in_a_function_of_c_can_compute(in_python: bool) -> None:
    """Also if no Python code of the program has called the function."""
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=(lambda: lock.acquire()) if in_python else lock.acquire)
    thread.start()
    try:
        while sys._current_frames()[present(thread.ident)].f_code.co_name not in ("<lambda>", "run"):
            time.sleep(0.001)  # it begins in the standard library
        assert do_others_compute()
    finally:
        lock.release()
        thread.join()


@pytest.mark.usefixtures("waiting")
def test_a_callers_variables_go_when_it_returns() -> None:
    """Needs Python 3.12 to fail: earlier ones end a generator without keeping its callers' frames."""

    def caller() -> weakref.ref[Thing]:
        thing = Thing()
        assert gradients_of([]) == []
        assert list(frames_of_other_threads())
        return weakref.ref(thing)

    assert caller()() is None


def test_gradients_are_not_read_while_another_thread_frees_one() -> None:
    """Torch releases the GIL while it frees a gradient. Here the tensor's own attribute runs code at that moment."""
    weight, found = torch.ones(2, requires_grad=True), []
    weight.grad = torch.ones(2)
    freed, looked = threading.Event(), threading.Event()

    class Waits:
        def __del__(self) -> None:
            freed.set()
            looked.wait()

    weight.grad.waits = Waits()  # type: ignore[attr-defined]
    thread = threading.Thread(target=lambda: setattr(weight, "grad", None))
    thread.start()
    freed.wait()
    found.append(read_gradient(torch.ones(2, requires_grad=True)))
    looked.set()
    thread.join()
    assert found == [None]


def test_gradients_are_read_outside_of_backward_passes_only() -> None:
    inside, goes_on = threading.Event(), threading.Event()

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            inside.set()
            goes_on.wait()
            return gradient

    loss = Waits.apply(torch.ones(2, requires_grad=True)).sum()  # type: ignore[no-untyped-call]
    thread = threading.Thread(target=loss.backward)
    thread.start()
    inside.wait()
    during = read_gradient(torch.ones(2, requires_grad=True))
    goes_on.set()
    thread.join()
    assert during is None


def test_no_other_thread_advances_between_the_check_and_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for the GIL when the reading begins must not get it in between."""
    counts, ended = [0] * 6, threading.Event()

    def count(number: int) -> None:
        while not ended.is_set():
            counts[number] += 1

    threads = [threading.Thread(target=count, args=(number,)) for number in range(len(counts))]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    monkeypatch.setattr(other_threads, "_may_write_gradients", lambda frame: False)
    for thread in threads:
        thread.start()
    try:
        rounds = [gradients_of(list(range(6)) * 20_000, counts.__getitem__) for _ in range(20)]
    finally:
        ended.set()
        sys.setswitchinterval(interval_s)
        for thread in threads:
            thread.join()
    found = [one for one in rounds if one]
    assert found == [one[:6] * 20_000 for one in found]
    assert found[0] != found[-1]


def test_a_thread_that_begins_after_the_check_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[threading.Thread] = []
    goes_on = threading.Event()

    def begins_another(frame: FrameType) -> bool:
        begun.append(threading.Thread(target=goes_on.wait))
        begun[-1].start()
        return False

    monkeypatch.setattr(other_threads, "_may_write_gradients", begins_another)
    waits = threading.Thread(target=goes_on.wait)
    waits.start()
    try:
        assert read_gradient(torch.ones(2, requires_grad=True)) is None
    finally:
        goes_on.set()
        for thread in (waits, *begun):
            thread.join()


@pytest.mark.parametrize(("source", "is_harmless"), [("import json", True), ("import torch", False)])
def test_a_library_is_harmless_if_it_does_not_use_torch(tmp_path: Path, source: str, is_harmless: bool) -> None:
    file = tmp_path / "site-packages" / "library.py"
    names: dict[str, Any] = {}
    exec(compile(f"{source}\nimport sys\nframe = sys._getframe()", str(file), "exec"), names)
    assert _is_harmless(names["frame"]) == is_harmless


def test_what_runs_in_gpuledger_can_be_inside_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "gpuledger"
    monkeypatch.setattr(other_threads, "_OWN", f"{package}{os.sep}")
    for file, is_harmless in ((package / "guard.py", False), (tmp_path / "site-packages" / "other.py", True)):
        names: dict[str, Any] = {}
        exec(compile("import sys\nframe = sys._getframe()", str(file), "exec"), names)
        assert _is_harmless(names["frame"]) == is_harmless


@pytest.mark.parametrize(("folder", "is_harmless"), [("_inductor/compile_worker", True), ("_inductor", False)])
def test_a_thread_that_waits_for_compile_workers_is_harmless(folder: str, is_harmless: bool) -> None:
    """A program on a GPU has one as soon as it compiles, and its gradients were not read then."""
    file = Path(torch.__file__).parent / folder / "subproc_pool.py"
    names: dict[str, Any] = {}
    exec(compile("import torch, sys\nframe = sys._getframe()", str(file), "exec"), names)
    assert _is_harmless(names["frame"]) == is_harmless


def test_a_turn_is_of_one_thread_and_can_be_taken_again_inside_itself() -> None:
    turn, order = Exclusive(), list[str]()

    def other() -> None:
        with turn:
            order.append("other")

    thread = threading.Thread(target=other)
    with turn:
        thread.start()
        with turn:
            order.append("inside")
        thread.join(0.2)
        order.append("outside")
    thread.join()
    assert order == ["inside", "outside", "other"]


def test_a_turn_that_never_ends_holds_up_nobody_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_threads, "_LONGEST_WAIT_S", 0.05)
    turn, reached = Exclusive(), list[int]()

    def others() -> None:
        for number in range(3):
            with turn:
                reached.append(number)

    with turn:
        thread = threading.Thread(target=others)
        thread.start()
        thread.join(30)
    assert reached == [0, 1, 2]
    with turn:  # and it is still one that can be taken
        pass


def test_a_turn_is_free_in_a_forked_child() -> None:
    turn, taken, over = Exclusive(), threading.Event(), threading.Event()

    def hold() -> None:
        with turn:
            taken.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    child = os.fork()
    if not child:
        os._exit(0 if turn._lock.acquire(blocking=False) else 1)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_two_threads_can_take_from_one_queue() -> None:
    class TakenMeanwhile(deque[int]):
        def __len__(self) -> int:
            return super().__len__() + 1  # as it was before another thread took one

    queue = TakenMeanwhile([1, 2])
    assert take_all(queue) == [1, 2]
    assert take_all(queue) == []
