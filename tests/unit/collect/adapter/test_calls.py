"""The light watches: what they see, and that they leave."""

from __future__ import annotations

from types import CodeType

import pytest
import torch
from torch import nn

from gpuledger.collect.adapter.calls import FirstCall, OutermostCalls
from gpuledger.collect.adapter.instrument import Observation
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.torch_entrances import module_call

pytestmark = pytest.mark.torch


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")


def code() -> CodeType:
    """Return the code that runs when a module is called."""
    return nn.Module.__call__.__code__  # type: ignore[attr-defined]


def test_the_first_call_begins_and_the_watch_is_gone() -> None:
    settled = FirstCall(lambda: None)  # a recording of compiled code, in this process, leaves observed code behind
    settled.install()
    settled.remove()
    before = code()
    begun: list[bool] = []
    FirstCall(lambda: begun.append(code() is before)).install()
    model = nn.Sequential(nn.ReLU(), nn.ReLU())
    assert model(torch.ones(1)) == model(torch.ones(1))
    assert begun == [True]
    assert code() is before


def test_what_begins_may_observe_the_call_that_it_begins_in() -> None:
    seen: list[str] = []
    observations: list[Observation] = []
    observer = Observer(lambda module, *_: seen.append(type(module).__name__) or 1, lambda *_: seen.append("left"))
    FirstCall(lambda: observations.append(Observation(module_call(), observer))).install()
    try:
        nn.Sequential(nn.ReLU())(torch.ones(1))
    finally:
        observations.pop().remove()
    assert seen == ["Sequential", "ReLU", "left", "left"]


def test_only_outermost_calls_are_told_and_an_exception_ends_one() -> None:
    before, told = code(), []
    watch = OutermostCalls(
        lambda module, _args, _kwargs: told.append(("began", type(module).__name__)),
        lambda module: told.append(("ended", type(module).__name__)),
    )
    watch.install()
    try:
        nn.Sequential(nn.ReLU(), nn.ReLU())(torch.ones(1))
        with pytest.raises(KeyError, match="mine"):
            nn.Sequential(Raises())(torch.ones(1))
        nn.Tanh()(torch.ones(1))
    finally:
        watch.remove()
    assert [name for kind, name in told if kind == "began"] == ["Sequential", "Sequential", "Tanh"]
    assert told[::2] == [("began", name) for _, name in told[1::2]]
    assert code() is before


@pytest.mark.parametrize("at", ["began", "ended"])
def test_a_watch_removed_while_it_tells_goes_at_once(at: str) -> None:
    before, told = code(), []

    def tell(kind: str) -> None:
        told.append(kind)
        if kind == at:
            watch.remove()

    watch = OutermostCalls(lambda *_: tell("began"), lambda _: tell("ended"))
    watch.install()
    assert nn.ReLU()(torch.ones(1)) == 1
    assert nn.ReLU()(torch.ones(1)) == 1
    assert told == (["began"] if at == "began" else ["began", "ended"])
    assert code() is before


def test_somebody_else_s_wrapper_stays_and_ours_below_it_does_nothing() -> None:
    before, plain, told = nn.Module.__call__, code(), []
    watch = OutermostCalls(lambda *_: told.append(1), lambda _: told.append(2))
    watch.install()
    theirs = lambda module, *args: before(module, *args)  # noqa: E731
    nn.Module.__call__ = theirs  # type: ignore[method-assign]
    try:
        assert nn.ReLU()(torch.ones(1)) == 1
        watch.remove()
        assert nn.Module.__call__ is theirs
        assert nn.ReLU()(torch.ones(1)) == 1
    finally:
        nn.Module.__call__ = before  # type: ignore[method-assign]
    assert told == [1, 2]
    assert code() is plain
