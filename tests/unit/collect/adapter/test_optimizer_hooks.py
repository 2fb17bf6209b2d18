"""Our hooks around optimizers' steps come out at any time, and no step of the program's fails for it."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import optimizer as optimizers
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from gpuledger import record
from gpuledger.collect.adapter import dynamo, torch_private
from gpuledger.collect.adapter.optimizer_hooks import OptimizerHook, after_steps, before_steps

pytestmark = pytest.mark.torch

KINDS = [before_steps, after_steps]
REGISTER: dict[Any, Any] = {
    before_steps: register_optimizer_step_pre_hook,
    after_steps: register_optimizer_step_post_hook,
}


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    assert not optimizers._global_optimizer_pre_hooks
    assert not optimizers._global_optimizer_post_hooks


def sgd() -> torch.optim.SGD:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], lr=0.1)


Hooks = Callable[[Callable[[Any], None]], OptimizerHook]


@pytest.mark.parametrize("hooks", KINDS)
def test_a_hook_is_called_with_each_optimizer_until_it_is_removed(hooks: Hooks) -> None:
    called: list[Any] = []
    one, other = sgd(), sgd()
    hook = hooks(called.append)
    one.step()
    other.step()
    hook.remove()
    one.step()
    assert called == [one, other]


@pytest.mark.parametrize("hooks", KINDS)
def test_removed_outside_a_step_it_is_gone_at_once(hooks: Hooks) -> None:
    hook = hooks(lambda _: None)
    hook.remove()
    hook.remove()
    assert not optimizers._global_optimizer_pre_hooks
    assert not optimizers._global_optimizer_post_hooks


@pytest.mark.parametrize("others", ["none", "before ours", "after ours", "around ours"])
@pytest.mark.parametrize("hooks", KINDS)
def test_removed_inside_its_call_no_step_fails_and_it_has_no_effect(hooks: Hooks, others: str) -> None:
    """torch goes through its dictionary meanwhile: taking an entry out would end the program."""
    told: list[str] = []
    register: Any = REGISTER[hooks]
    handles: list[RemovableHandle] = []
    if others in ("before ours", "around ours"):
        handles.append(register(lambda *_: told.append("theirs before")))

    def called(_: Any) -> None:
        told.append("ours")
        ours.remove()

    ours = hooks(called)
    if others in ("after ours", "around ours"):
        handles.append(register(lambda *_: told.append("theirs after")))
    optimizer = sgd()
    for _ in range(3):
        optimizer.step()
    theirs = {"none": [], "before ours": ["before"], "after ours": ["after"], "around ours": ["before", "after"]}
    assert [name for name in told if name != "ours"] == [f"theirs {name}" for name in theirs[others]] * 3
    assert told.count("ours") == 1
    for handle in handles:
        handle.remove()
    optimizer.step()  # now it is the last, and goes
    assert told.count("ours") == 1


@pytest.mark.parametrize("where", ["pre", "post"])
def test_a_hook_of_one_optimizer_may_end_ours(where: str) -> None:
    """torch calls an optimizer's own hooks in one loop with the global ones: after them, or before those at the end."""
    called: list[Any] = []
    ours = [before_steps(called.append), after_steps(called.append)]
    optimizer = sgd()

    def end(*_: Any) -> None:
        for hook in ours:
            hook.remove()

    register = optimizer.register_step_pre_hook if where == "pre" else optimizer.register_step_post_hook
    handle = register(end)
    for _ in range(3):
        optimizer.step()
    handle.remove()
    optimizer.step()
    assert len(called) == 1


def test_a_hook_of_the_program_may_end_ours() -> None:
    for register in REGISTER.values():
        for ours_first in (True, False):
            called: list[Any] = []
            hooks: list[OptimizerHook] = []

            def end(*_: Any, hooks: list[OptimizerHook] = hooks) -> None:
                for hook in hooks:
                    hook.remove()

            handle = None if ours_first else register(end)  # type: ignore[operator]
            hooks += [before_steps(called.append), after_steps(called.append)]
            handle = handle or register(end)  # type: ignore[operator]
            optimizer = sgd()
            for _ in range(3):
                optimizer.step()
            handle.remove()
            optimizer.step()
            assert len(called) <= 2


class Around(torch.optim.Optimizer):
    """An optimizer that steps another inside its own step."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups[0]["params"], {})

    def step(self, closure: Any = None) -> Any:
        self.inner.step()


@pytest.mark.parametrize("when", [0, 1])
@pytest.mark.parametrize("hooks", KINDS)
def test_removed_in_nested_steps(hooks: Hooks, when: int) -> None:
    """The outer step goes through the dictionary again after the inner one, or is going through it."""
    called: list[Any] = []

    def once(optimizer: Any) -> None:
        called.append(optimizer)
        if len(called) == when + 1:
            ours.remove()

    ours = hooks(once)
    optimizer = Around(sgd())
    optimizer.step()
    optimizer.step()
    optimizer.step()
    assert len(called) == when + 1


@pytest.mark.parametrize("register", REGISTER.values())
def test_a_hook_of_the_program_that_steps_another_optimizer(register: Any) -> None:
    inner = sgd()

    def steps(optimizer: Any, *_: Any) -> None:
        if optimizer is not inner:
            inner.step()

    for ours_first in (True, False):
        handle = None if ours_first else register(steps)
        called: list[Any] = []
        hooks: list[OptimizerHook] = []

        def end(optimizer: Any, called: list[Any] = called, hooks: list[OptimizerHook] = hooks) -> None:
            called.append(optimizer)
            for hook in hooks:
                hook.remove()

        hooks += [before_steps(end), after_steps(end)]
        handle = handle or register(steps)
        outer = sgd()
        for _ in range(3):
            outer.step()
        handle.remove()
        outer.step()
        assert len(called) == 1


def test_removed_while_another_thread_steps() -> None:
    """The other thread is inside the dictionary: the entry waits for a call of its own."""
    entered, go_on = threading.Event(), threading.Event()

    def waits(*_: Any) -> None:
        entered.set()
        assert go_on.wait(60)

    handle = register_optimizer_step_post_hook(waits)
    called: list[Any] = []
    ours = after_steps(called.append)
    errors: list[BaseException] = []

    def steps() -> None:
        try:
            sgd().step()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=steps)
    thread.start()
    assert entered.wait(60)
    ours.remove()
    assert len(optimizers._global_optimizer_post_hooks) == 2
    go_on.set()
    thread.join()
    handle.remove()
    assert errors == []
    assert called == []
    sgd().step()


def test_many_threads_step_while_hooks_come_and_go() -> None:
    errors: list[BaseException] = []
    stop = threading.Event()

    def steps() -> None:
        optimizer = sgd()
        try:
            while not stop.is_set():
                optimizer.step()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=steps) for _ in range(3)]
    left: list[OptimizerHook] = []

    def come_and_go(_: Any) -> None:
        left.append(None)  # type: ignore[arg-type]

    hook = after_steps(come_and_go)
    for thread in threads:
        thread.start()
    while len(left) < 50:
        stop.wait(0.001)
    hook.remove()
    stop.wait(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    sgd().step()  # what could not go meanwhile goes now


def test_what_a_hook_raises_leaves_no_trace() -> None:
    def raises(_: Any) -> None:
        raise KeyError("a")

    hook = before_steps(raises)
    with pytest.raises(KeyError):
        sgd().step()
    hook.remove()
    assert not optimizers._global_optimizer_pre_hooks


# -- recordings beside hooks of the program's -------------------------------------------------------------------------


def train(steps: int = 20) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("register", REGISTER.values())
def test_a_training_with_a_hook_of_its_own_is_recorded(register: Any, tmp_path: Path) -> None:
    told: list[int] = []
    handle = register(lambda *_: told.append(1))
    try:
        with record("hooked", out=tmp_path / "hooked", steps=(1, 2)) as recording:
            train()
    finally:
        handle.remove()
    sgd().step()
    assert len(told) == 20
    assert [row["step"] for row in recording.run().rank().table("steps").to_pylist() if row["recorded"]] == [1, 2]


def test_torchs_own_memory_tracker_works_beside_a_recording(tmp_path: Path) -> None:
    from torch.distributed._tools.mem_tracker import MemTracker

    def tracked() -> int:
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.Adam(model.parameters())
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(6):
                tracker.reset_mod_stats()
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return sum(snapshot["Total"] for snapshot in tracker.get_tracker_snapshot("peak").values())

    bare = tracked()
    with record("tracked", out=tmp_path / "tracked", steps=(1, 2)):
        assert tracked() == bare > 0


@pytest.mark.parametrize("hooks", KINDS)
def test_ids_of_the_programs_hooks_are_those_without_ours(hooks: Hooks) -> None:
    first = torch.ones(1, requires_grad=True).register_hook(lambda _grad: None).id
    hook = hooks(lambda _: None)
    assert torch.ones(1, requires_grad=True).register_hook(lambda _grad: None).id == first + 1
    other = hooks(lambda _: None)
    assert hook._handle.id != other._handle.id
    hook.remove()
    other.remove()


def test_no_id_is_given_twice_if_another_thread_registers_meanwhile() -> None:
    handles: list[RemovableHandle] = []

    def register(_hook: Any) -> Any:
        handles.extend(RemovableHandle(OrderedDict()) for _ in range(2))
        return handles[-1]

    torch_private.register_hook(register, lambda _: None)
    handles += [RemovableHandle(OrderedDict()) for _ in range(2)]
    assert len({handle.id for handle in handles}) == len(handles)


def test_a_hook_that_cannot_be_registered_changes_no_id() -> None:
    def refuse(_hook: Any) -> Any:
        raise TypeError("no hook")

    before = RemovableHandle.next_id
    with pytest.raises(TypeError, match="no hook"):
        torch_private.register_hook(refuse, lambda _: None)
    assert RemovableHandle.next_id == before


def test_a_compiled_step_is_not_compiled_again_when_the_hooks_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    counts = sys.modules["torch._dynamo.convert_frame"]
    monkeypatch.setattr(dynamo, "compiled_frames", lambda: counts.FRAME_COUNTER)
    hooks = [before_steps(lambda _: None), after_steps(lambda _: None)]
    optimizer = sgd()
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    step()
    for hook in hooks:
        hook.remove()
    with torch._dynamo.config.patch(error_on_recompile=True):
        step()
        step()
    torch._dynamo.reset()
    optimizer.step()  # nothing compiled is left, and the hooks leave
    optimizer.step()
