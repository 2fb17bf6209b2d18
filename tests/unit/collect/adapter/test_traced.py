"""torch.compile does the same with observed functions and hooks of ours as without them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from observing import Seen, observed
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gpuledger.collect.adapter import torch_entrances
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.optimizer_hooks import after_steps, before_steps, is_guarded
from gpuledger.collect.adapter.uncompiled import keep_uncompiled
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.memory.dispatch import DispatchRecorder
from gpuledger.collect.steps.step_counter import StepCounter
from gpuledger.model.journal.journal import Part

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # Dynamo reads attributes that warn


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    keep_uncompiled()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def twice(number: int) -> int:
    return number * 2


def is_compiled(function: Callable[..., object]) -> bool:
    return bool(torch._C._dynamo.eval_frame._debug_get_cache_entry_list(function.__code__))


def computes_nothing(_: Tensor, number: int) -> int:
    return twice(number)


def computes(x: Tensor) -> Tensor:
    return x * twice(2)


def test_a_frame_that_computes_nothing_is_skipped_although_it_calls_an_observed_function() -> None:
    seen = Seen()
    with observed(twice, seen.observer):
        assert torch.compile(computes_nothing, backend="eager")(torch.ones(1), 2) == 4
    assert not is_compiled(computes_nothing)
    assert [call[0] for call in seen.calls] == ["enter", "leave"]


def test_an_observed_function_is_traced_without_its_observer() -> None:
    seen = Seen()
    with observed(twice, seen.observer):
        assert torch.compile(computes, backend="eager", fullgraph=True)(torch.ones(1)) == 4
    assert is_compiled(computes)
    assert not seen.calls


class Plain(Optimizer):
    """Breaks the graph inside its step, as torch's optimizers do."""

    def step(self, closure: Any = None) -> Any:
        torch._dynamo.graph_break()
        for weight in self.param_groups[0]["params"]:
            weight.data.add_(1)


def optimizer(kind: type[Plain] = Plain) -> Plain:
    return kind([nn.Parameter(torch.ones(2))], {})


def compilations(steps: int = 2) -> list[str | None]:
    """Return the names of the functions that are compiled for two optimizers with compiled steps."""
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    calls = [torch.compile(optimizer().step, backend="eager") for _ in range(2)]
    for _ in range(steps):
        for call in calls:
            call()
    return [one.co_name for one in torch._dynamo.utils.get_compilation_metrics()]


def test_as_much_is_compiled_of_two_optimizers_with_our_hooks_as_without() -> None:
    """Since Python 3.13, any hook before steps keeps Dynamo from compiling what follows a graph break in a step."""
    own = [] if sys.version_info < (3, 13) else [register_optimizer_step_pre_hook(lambda *_: None)]
    bare = compilations()
    for handle in own:
        handle.remove()
    after: list[object] = []
    hooks = [before_steps(lambda _: None), after_steps(after.append)]
    try:
        assert compilations() == bare
    finally:
        torch._dynamo.reset()
        for hook in hooks:
            hook.remove()
    assert len(after) == 4
    assert "wrapper" in bare


def adds_in_a_loop(x: Tensor) -> Tensor:
    """Runs eagerly, because of a graph break in a loop."""
    for _ in range(1):
        torch._dynamo.graph_break()
        x = torch.hypot(x, x)
    return x


def test_nothing_of_ours_is_asked_for_where_guards_are_skipped() -> None:
    """There, torch raises an error at every function that it has not met before."""

    class Step(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x).sum().backward()
            return adds_in_a_loop(x)

    net = Step(1, 1)
    step = torch.compile(net, backend="eager")
    x, seen = torch.ones(1), Seen()
    functions = torch_entrances.module_call(), torch_entrances.backward()
    recorder = DispatchRecorder(StackTable(), TagTable(), Guard(_raise))
    keep_uncompiled()
    with observed(functions[0], seen.observer):
        step(x)
    with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
        step(x)
        for _ in range(2):
            with ExitStack() as around:
                for function in functions:
                    around.enter_context(observed(function, seen.observer))
                recorder.open(Part(), LiveObjects())
                around.callback(recorder.close, Part(), "exit")
                step(x)
            step(x)
    entered = [call[1] for call in seen.calls if call[0] == "enter"]
    assert [one for one in entered if isinstance(one, nn.Module)] == [step, net] * 3
    assert len(entered) == 8


def _raise(error: BaseException) -> None:
    raise error


class Whole(Plain):
    """Is compiled together with what calls it."""

    def step(self, closure: Any = None) -> Any:
        for weight in self.param_groups[0]["params"]:
            weight.data.add_(1)


def counting() -> tuple[StepCounter, list[tuple[str, object]]]:
    """Return a counter and what it tells."""
    told: list[tuple[str, object]] = []
    counter = StepCounter(
        Guard(_raise),
        before_optimizer=lambda optimizer: told.append(("before", optimizer)),
        after_optimizer=lambda optimizer: told.append(("after", optimizer)),
        ended=lambda kind, *_: told.append(("ended", kind)),
    )
    return counter, told


@pytest.mark.parametrize(("kind", "counts"), [(Plain, True), (Whole, False)])
def test_steps_that_were_compiled_before_are_not_compiled_again(kind: type[Plain], counts: bool) -> None:
    """Where compiled code calls no hook, the counter is told of updates in another way."""
    assert not is_guarded(before_steps)
    one = optimizer(kind)
    step = torch.compile(one.step, backend="eager")
    step()
    assert is_guarded(before_steps)
    assert is_guarded(after_steps) is not counts
    counter, told = counting()
    counter.install()
    try:
        with torch._dynamo.config.patch(error_on_recompile=True):
            step()
            step()
    finally:
        torch._dynamo.reset()
        counter.remove()
    assert told == [("before", one), ("after", one), ("ended", "optimizer")] * 2 * counts


def test_a_compiled_step_has_its_beginning_although_an_earlier_one_raised() -> None:
    one, (counter, told) = optimizer(), counting()
    counter.install()
    try:
        weights, one.param_groups[0]["params"] = one.param_groups[0]["params"], None
        with pytest.raises(TypeError):
            one.step()
        one.param_groups[0]["params"] = weights
        torch.compile(one.step, backend="eager")()
        one.step()
    finally:
        torch._dynamo.reset()
        counter.remove()
    assert told == [("before", one)] + [("before", one), ("after", one), ("ended", "optimizer")] * 2
