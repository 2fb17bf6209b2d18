"""Times and joules of scopes: the scope of every operator and kernel, and what is summed by them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from synthetic_work import load_timed
from traced import ENGINE, MAIN, NODE, OTHER, Trace

import gpuledger
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.groups import NO_SCOPE
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.step.energy import break_down_energy
from gpuledger.analyze.step.side_by_side import IDLE_LABEL, lines_by
from gpuledger.analyze.step.times import break_down_time
from gpuledger.cli.main import main
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import MODULE_RANGE, PHASE_RANGE, SCOPE_RANGE
from gpuledger.model.run import Rank

BACKWARD, OPTIMIZER = (f"{PHASE_RANGE}{int(phase)}" for phase in (Phase.BACKWARD, Phase.OPTIMIZER))


class Scoped(Trace):
    """A trace with marks; each operator launches one kernel, and ``found`` is the kernels' scopes in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0
        self.numbers: dict[str, int] = {"a parameter": 0}
        self.launched: list[int] = []

    def enter(self, path: str, name: str | None = None, *, lane: int = MAIN) -> None:
        """``name`` is "" for a scope that stands alone."""
        last = path.rpartition("/")[2] if name is None else name
        self._mark(f"{self._number(path)}.{self._number(last)}", lane)

    def leave(self, path: str = "", *, lane: int = MAIN) -> None:
        self._mark(str(self._number(path)), lane)

    def run(self, sequence: int = -1, *, lane: int = MAIN) -> None:
        self.at += 2
        self.launched.append(self.host("aten::mul", self.at, self.at + 1, sequence=sequence, lane=lane))

    @contextlib.contextmanager
    def around(self, name: str, lane: int = MAIN, sequence: int = -1, made_by: int = 0) -> Iterator[None]:
        """A range that lasts as long as what is done inside it."""
        start = self.at = self.at + 2
        yield
        self.at += 2
        self.host(name, start, self.at, sequence=sequence, lane=lane, made_by=made_by)

    def node(self, sequence: int = -1, *, lane: int = ENGINE, made_by: int = MAIN) -> None:
        """A node of the graph whose evaluation is one operator."""
        with self.around(f"{NODE}Mul", lane, sequence, made_by if sequence >= 0 else 0):
            self.run(lane=lane)

    @property
    def found(self) -> list[str]:
        self.part.names += list(self.numbers)
        for number, launch in enumerate(self.launched):
            self.device("kernel", 5000 + 10 * number, 5005 + 10 * number, launch)
        texts = ["", *self.numbers]
        return [texts[scope_id + 1] for scope_id in self.owned().scope_id.tolist()]

    def _mark(self, numbers: str, lane: int) -> None:
        self.at += 2
        self.host(f"{SCOPE_RANGE}{numbers}", self.at, self.at + 1, lane=lane)

    def _number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers)) if text else -1


def test_forward_and_backward_go_to_the_scope_of_the_forward() -> None:
    trace = Scoped()
    trace.enter("a")
    trace.run(sequence=5)
    trace.enter("a/b")
    with trace.around(f"{MODULE_RANGE}0"):
        trace.run(sequence=6)
    trace.leave("a")
    trace.run(sequence=7)
    trace.leave()
    trace.run(sequence=8)
    trace.enter("loss")
    with trace.around(BACKWARD):
        for sequence in (8, 7, 6, -1, 5, -1):
            trace.node(sequence)
        trace.node(4)  # made before the pass began
    trace.leave()
    trace.enter("update")
    with trace.around(OPTIMIZER):
        trace.run()
    trace.leave()
    trace.run()
    forward = ["a", "a/b", "a", ""]
    backward = ["loss", "a", "a/b", "a/b", "a", "a", "loss"]  # a gradient's accumulation goes with the node before it
    assert trace.found == [*forward, *backward, "update", ""]


def test_backward_on_the_calling_thread_leaves_the_scope_it_was_called_in() -> None:
    trace = Scoped()
    trace.enter("a")
    trace.run(sequence=1)
    trace.enter("a/back")
    with trace.around(BACKWARD):
        trace.node(1, lane=MAIN)
        trace.run()
    trace.run()
    trace.leave("a")
    trace.run()
    assert trace.found == ["a", "a", "a/back", "a/back", "a"]


def test_threads_number_their_nodes_each_for_itself() -> None:
    trace = Scoped()
    for lane, name in ((MAIN, "mine"), (OTHER, "theirs")):
        trace.enter(name, lane=lane)
        trace.run(sequence=3, lane=lane)
    trace.leave()
    with trace.around(BACKWARD):
        trace.node(3, made_by=MAIN)
        trace.node(3, made_by=OTHER)
    trace.run(lane=OTHER)
    assert trace.found == ["mine", "theirs", "mine", "theirs", "theirs"]


def test_tasks_that_take_turns_need_not_nest() -> None:
    trace = Scoped()
    trace.enter("a")
    trace.run()
    trace.leave()  # to another task, and so on
    trace.enter("b")
    trace.run()
    trace.leave("a")
    trace.run()
    trace.leave("")
    trace.leave("b")
    trace.run()
    trace.leave()
    trace.run()
    assert trace.found == ["a", "b", "a", "b", ""]


def test_what_a_node_computes_again_is_in_the_scopes_of_its_forward() -> None:
    trace = Scoped()
    trace.enter("outer")
    trace.enter("outer/inner")
    trace.run(sequence=1)
    trace.leave("outer")
    trace.run(sequence=2)
    trace.leave()
    with trace.around(BACKWARD), trace.around(f"{NODE}Checkpoint", ENGINE, sequence=2, made_by=MAIN):
        trace.run(lane=ENGINE)
        trace.enter("inner", lane=ENGINE)  # the engine's thread is in no scope of the program's
        trace.run(sequence=1, lane=ENGINE)
        trace.leave(lane=ENGINE)
        trace.run(lane=ENGINE)
        trace.enter("alone", "", lane=ENGINE)
        trace.run(lane=ENGINE)
        trace.enter("alone/never left", lane=ENGINE)
    with trace.around(BACKWARD):
        trace.node(1, made_by=ENGINE)
        trace.node(1, made_by=MAIN)
        trace.node(2)
    assert trace.found[2:] == ["outer", "outer/inner", "outer", "alone", *["outer/inner"] * 2, "outer"]


def test_whatever_marks_there_are_no_kernel_is_lost_and_none_goes_to_a_scope_that_is_not_there() -> None:
    for seed in range(20):
        rng, trace = random.Random(seed), Scoped()
        for _ in range(60):
            lane, path = rng.choice((MAIN, ENGINE)), "/".join(rng.choices("abc", k=rng.randint(1, 3)))
            choice = rng.randrange(5)
            if choice == 0:
                trace.enter(path, lane=lane)
            elif choice == 1:
                trace.leave(rng.choice((path, "")), lane=lane)
            elif choice == 2:
                trace.node(rng.randint(-1, 9), lane=lane)
            elif choice == 3:
                with trace.around(BACKWARD, lane):
                    trace.enter(path, lane=lane)
                    trace.node(rng.randint(-1, 9), lane=lane)
            else:
                trace.run(rng.randint(-1, 9), lane=lane)
        found = trace.found
        assert len(found) == len(trace.launched)
        assert set(found) <= {"", *trace.numbers} - {"a parameter"}


# -- a recording ----------------------------------------------------------------------------------------------------

pytest.importorskip("torch")
import torch  # noqa: E402


def _work(recording: Any) -> None:
    """Take 14 steps in which an operator tells the scope that it is in."""
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @gpuledger.scope("decorated")
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    def left_in_between() -> Generator[Any, None, None]:
        with gpuledger.scope("generator"):
            yield x.tan()

    async def task(name: str, operator: Any) -> None:
        with gpuledger.scope(name):
            for _ in range(2):
                await asyncio.sleep(0)
                operator(x)

    async def tasks() -> None:
        await asyncio.gather(task("first", torch.sinh), task("second", torch.cosh))

    def elsewhere(scope: gpuledger.scope) -> None:
        scope.__enter__()
        torch.asinh(x)

    x = torch.ones(8, 16)
    for _ in range(14):
        with gpuledger.scope("outer"):
            y = model(x).sin()
            with gpuledger.scope("inner"):
                y = y.exp()
        y = decorated(y)
        with contextlib.suppress(KeyError), gpuledger.scope("fails"):
            torch.neg(x)
            raise KeyError
        torch.ceil(x)
        held = left_in_between()
        next(held)
        held.close()
        asyncio.run(tasks())
        scope = gpuledger.scope("entered in another thread")
        thread = threading.Thread(target=elsewhere, args=(scope,))
        thread.start()
        thread.join()
        scope.__exit__(None, None, None)  # where it was not entered
        torch.floor(x)
        loss = y.square().sum()
        with gpuledger.scope("backward"):
            loss.backward()
        with gpuledger.scope("update"):
            optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Rank:
    path = tmp_path_factory.mktemp("scoped") / "scoped.ledger"
    with gpuledger.record(out=path, devices="cpu", steps=(1, 2), passes="memory,time") as recording:
        _work(recording)
    return recording.run().rank()


@pytest.mark.torch
def test_every_operator_of_a_recording_has_its_scope(rank: Rank) -> None:
    names = {row["name_id"]: row["name"] for row in rank.table("names").to_pylist()}
    found: dict[str, set[str]] = defaultdict(set)
    for row in rank.table("spans").to_pylist():
        if row["kind"] == "host":
            found[names[row["name_id"]].rpartition(" ")[2]].add(names.get(row["scope_id"], ""))
    assert [note for note in rank.manifest.notes if "error" in note] == []
    expected = {
        **{"linear": "outer", "sin": "outer", "exp": "outer/inner", "cos": "decorated", "neg": "fails", "ceil": ""},
        **{"tan": "generator", "sinh": "first", "cosh": "second", "floor": "", "square": ""},
        **{"AddmmBackward0": "outer", "SinBackward0": "outer", "ExpBackward0": "outer/inner"},
        **{"CosBackward0": "decorated", "SumBackward0": "backward", "PowBackward0": "backward"},
    }
    for name, scope in expected.items():
        assert found[name if name[0].isupper() else f"aten::{name}"] == {scope}, name
    assert "update" in found["aten::_foreach_add_"] | found["aten::add_"]


@pytest.mark.torch
def test_the_scopes_of_a_recording_sum_to_its_work(rank: Rank) -> None:
    times = break_down_time(rank)
    assert times is not None
    assert sum(one.time_ns for one in times.scopes) == pytest.approx(times.work_ns)
    spent = {(one.scope, one.phase): one.time_ns for one in times.scopes}
    for place in (("outer", "forward"), ("outer", "backward"), ("outer/inner", "backward"), ("update", "optimizer")):
        assert spent[place] > 0
    assert spent["decorated", "forward"] > 0  # outside modules, on the way to the loss


@pytest.mark.torch
@pytest.mark.parametrize("depth", [None, 1])
def test_bytes_and_times_by_scope_close_on_the_same_totals(rank: Rank, depth: int | None) -> None:
    breakdown = break_down(rank, find_peak(rank), ("category", "module", "scope"), depth)
    lines = {line.label: line for line in lines_by(rank, breakdown, "scope", depth=depth)}
    times = break_down_time(rank)
    assert times is not None
    assert sum(line.bytes or 0 for line in lines.values()) == breakdown.allocated_bytes
    assert sum(line.time_ns or 0 for line in lines.values()) == pytest.approx(times.work_ns)
    assert ("outer/inner" in lines) == (depth is None)
    outer = lines["outer"]
    assert outer.forward_ns
    assert outer.backward_ns
    assert lines[NO_SCOPE].bytes


@pytest.mark.torch
def test_show_puts_bytes_and_times_of_scopes_side_by_side(rank: Rank) -> None:
    words = ["show", str(rank.directory.parent), "--by", "scope"]
    shown = CliRunner().invoke(main, words).output.splitlines()
    head = next(line for line in shown if line.startswith("by scope"))
    assert head.endswith("forward ms  backward ms  optimizer ms  all ms")
    assert any(line.startswith("outer/inner") for line in shown)
    document = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    scopes = document["time"]["scopes"]
    assert sum(one["time_ns"] for one in scopes) == pytest.approx(document["time"]["work_ns"])
    assert {"outer", "outer/inner", None} <= {one["scope"] for one in scopes}


def test_the_joules_of_scopes_sum_to_the_step(tmp_path: Path) -> None:
    rank = load_timed(tmp_path / "timed.ledger").rank()
    energy = break_down_energy(rank)
    assert energy is not None
    assert sum(one.energy_j for one in energy.scopes) == pytest.approx(energy.step_energy_j)
    by_module = sum(one.energy_j for one in energy.accounts if one.phase == "idle")
    assert sum(one.energy_j for one in energy.scopes if one.phase == "idle") == pytest.approx(by_module)
    lines = lines_by(rank, break_down(rank, find_peak(rank, 0), ("category", "module", "scope")), "scope")
    joules = {line.label: line.energy_j or 0.0 for line in lines}
    assert sum(joules.values()) == pytest.approx(energy.step_energy_j)
    assert min(joules[label] for label in ("encoder", "encoder/attention", NO_SCOPE, IDLE_LABEL)) > 0
