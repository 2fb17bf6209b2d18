"""Graph breaks, recompilations and failures of the compiler are in the run, on their line, and no module is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from recorded import Recorded, record_own
from torch import Tensor, nn

from gpuledger.model.compilation import Compilation, CompiledRegion

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # Dynamo reads attributes that warn

WIDTH = 8
BACKEND = "aot_eager"


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Begin without compiled code, and leave none."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.factor = 1.0


class Breaks(Layers):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()  # by hand
        x = self.second(x)
        if x.sum() > 1e9:  # data
            x = x + 1
        return x * 2


class Changes(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) * self.factor  # type: ignore[no-any-return]


def place_of(owner: type, text: str) -> str:
    """Return FILE:LINE of the line of a class that contains ``text``."""
    lines, first = inspect.getsourcelines(owner)
    return f"{Path(__file__)}:{next(first + number for number, line in enumerate(lines) if text in line)}"


def compiled(done: Compilation | None) -> Compilation:
    assert done is not None
    return done


def region(done: Compilation | None, owner: type) -> CompiledRegion:
    """Return the region of a class's forward."""
    source = place_of(owner, "def forward")
    (found,) = [one for one in compiled(done).regions if one.source == source]
    return found


def run(
    make: Callable[[], nn.Module], steps: int = 4, backend: object = BACKEND, change: float = 0.0, **how: bool
) -> Recorded:
    def program(_: object) -> object:
        net = make()
        net.compile(backend=backend, **how)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(steps):
            net.factor = 1.0 + step * change  # type: ignore[assignment]
            net(torch.randn(64, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return net, optimizer

    return record_own(program, steps=(1, 3))


def modules(recorded: Recorded) -> set[str]:
    """Return the modules with memory of forward and backward."""
    return {one.module for one in recorded.blocks if one.phase in ("forward", "backward")}


def test_a_graph_break_has_its_line_and_what_was_compiled_after_it() -> None:
    done = compiled(run(Breaks).manifest.compilation)
    by_source = {one.source: one for one in done.places}
    for text in ("# by hand", "# data"):
        found = by_source[place_of(Breaks, text)]
        assert (found.count, found.graphs) == (1, 1)
        assert 0 < found.seconds < done.seconds + 1
    assert by_source[place_of(Breaks, "# data")].reason == "Branch on the value of a tensor"
    after = [one for one in done.regions if one.function.startswith("forward after line ")]
    assert len(after) == 2
    assert done.graphs == region(done, Breaks).compilations + sum(one.compilations for one in after)
    assert not any(one.recompilations or one.failure for one in done.regions)


def test_a_region_that_is_compiled_again_has_the_number_and_the_reason() -> None:
    found = region(run(Changes, change=0.5, dynamic=False).manifest.compilation, Changes)
    assert (found.compilations, found.recompilations, found.failure) == (4, 3, None)
    assert found.reasons[0] == "self.factor == 1.0"


def test_a_region_that_is_compiled_in_every_step_stops_at_the_limit() -> None:
    with torch._dynamo.config.patch(recompile_limit=3):
        recorded = run(Changes, steps=6, change=0.5, dynamic=False)
    found = region(recorded.manifest.compilation, Changes)
    assert (found.compilations, found.recompilations) == (3, 2)
    assert "limit" in str(found.failure)
    assert len(found.reasons) == 3
    assert modules(recorded) <= {"", *recorded.paths}


def fails(_graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
    raise RuntimeError("planted")


def test_a_region_that_fails_and_falls_back_is_said_and_its_memory_is_that_of_an_eager_run() -> None:
    with torch._dynamo.config.patch(suppress_errors=True):
        recorded = run(Changes, backend=fails)
    found = region(recorded.manifest.compilation, Changes)
    assert (found.compilations, found.recompilations) == (0, 0)
    assert "planted" in str(found.failure)
    assert not recorded.manifest.notes
    assert {"first", "second"} <= modules(recorded)


def test_what_was_compiled_before_the_recording_is_not_said() -> None:
    torch.compile(Breaks(), backend=BACKEND)(torch.randn(4, WIDTH))
    done = compiled(run(Changes).manifest.compilation)
    assert [one.source for one in done.regions] == [place_of(Changes, "def forward")]
    assert not done.places


def test_a_model_whose_compile_compiles_nothing_is_said_to_run_uncompiled() -> None:
    torch._dynamo.utils.counters.clear()
    recorded = run(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    done = compiled(recorded.manifest.compilation)
    assert (done.graphs, done.regions, done.is_done) == (0, (), False)
    (note,) = recorded.manifest.notes
    assert note.startswith("1 module was to run compiled, and torch.compile has compiled nothing")
    assert {"0", "1"} <= modules(recorded)
