"""What is allocated inside scopes, forward and backward, in a recording."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import read_recorded, record_own, scopes_by_size

import gpuledger
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.groups import NO_SCOPE, group_accounts
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.collect.attribution import scopes
from gpuledger.collect.attribution.scopes import current_path

pytest.importorskip("torch")
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.torch


def test_forward_and_backward_of_plain_code_go_to_their_scopes() -> None:
    def program(recording: Any) -> None:
        a, b = torch.ones(1001, requires_grad=True), torch.ones(1003, requires_grad=True)
        with gpuledger.scope("a"):
            first = a.sin().exp()
        plain = torch.ones(1005, requires_grad=True).exp().sum()
        with gpuledger.scope("b"):
            second = b.sin().exp()
        loss = first.sum() + second.sum() + plain
        loss.backward()

    recorded = record_own(program)
    backward = scopes_by_size(recorded, "backward")
    assert {size: backward[size] for size in (1001, 1003, 1005)} == {1001: {"a"}, 1003: {"b"}, 1005: {""}}
    assert scopes_by_size(recorded, "setup", "between")[1003] == {"", "b"}


class Exp(nn.Module):
    """A module whose output's node carries a hook of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp()


def random_program(seed: int, expected: dict[int, str]) -> Callable[[Any], None]:
    """Return a program of nested scopes in which the size of a tensor tells the scope it was made in."""
    rng = random.Random(seed)

    def level(depth: int, losses: list[Any]) -> None:
        for _ in range(rng.randint(1, 3)):
            if depth < 4 and rng.random() < 0.6:
                with gpuledger.scope(rng.choice("abc")):
                    level(depth + 1, losses)
            size = 1000 + len(expected)
            expected[size] = current_path()
            start = torch.ones(size, requires_grad=True)
            product = start.sin() * start
            losses.append((Exp()(product) if rng.random() < 0.5 else product.exp()).sum())

    def program(recording: Any) -> None:
        losses: list[Any] = []
        level(0, losses)
        rng.shuffle(losses)
        if rng.random() < 0.5:
            losses[0].backward(retain_graph=True)
        total = sum(losses)
        with gpuledger.scope("around"):
            total.backward()

    return program


@pytest.mark.parametrize("seed", range(8))
def test_every_byte_made_in_backward_goes_to_the_scope_that_made_the_node(seed: int) -> None:
    expected: dict[int, str] = {}
    recorded = record_own(random_program(seed, expected))
    found = scopes_by_size(recorded, "backward")
    assert len(expected) >= 1
    for size, path in expected.items():
        if path:
            assert found[size] == {path}, f"{size} floats"
        else:  # the first of two backward passes is called outside every scope
            assert found[size] <= {"", "around"}, f"{size} floats"


class Net(nn.Module):
    """A scope inside a module, and one around modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 33), nn.Linear(33, 34)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        with gpuledger.scope("functional"):
            x = x.exp().tanh()
        with gpuledger.scope("around"):
            return self.last(x)


def train(model: nn.Module, times: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(times):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 32)).sum()
        loss.backward()
        with gpuledger.scope("update"):
            optimizer.step()


def test_scope_and_module_are_told_apart() -> None:
    recorded = record_own(lambda recording: train(Net()))
    made = {(b.module, b.scope, b.phase, b.bytes) for b in recorded.blocks if b.step == 2}
    activation, output = 16 * 33 * 4, 16 * 34 * 4
    assert ("Net", "functional", "forward", activation) in made
    assert ("Net", "functional", "backward", activation) in made
    assert ("last", "around", "forward", output) in made
    assert ("last", "around", "backward", activation) in made
    assert ("first", "", "forward", activation) in made
    assert ("first", "functional", "backward", activation) not in made
    assert {b.scope for b in recorded.of("gradient") if b.module == "last" and b.alloc_index >= 0} == {"around"}
    assert {b.scope for b in recorded.of("optimizer_state") if b.alloc_index >= 0} == {"update"}


def test_a_checkpointed_forward_is_computed_again_in_the_scope_it_was_in() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        with gpuledger.scope("inner"):
            return x.sin().exp()

    def program(recording: Any) -> None:
        start = torch.ones(1001, requires_grad=True)
        with gpuledger.scope("outer"):
            result = checkpoint(body, start * 2, use_reentrant=False)
        result.sum().backward()

    assert scopes_by_size(record_own(program), "backward")[1001] == {"outer", "outer/inner"}


def test_a_recording_that_begins_inside_a_scope_knows_it() -> None:
    def program(recording: Any) -> None:
        torch.ones(1001)

    with gpuledger.scope("early"):
        recorded = record_own(program)
    assert scopes_by_size(recorded, "between")[1001] == {"early"}


def test_a_thread_keeps_the_scope_that_it_entered_before_the_recording() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        with gpuledger.scope("early"):
            begun.wait()
            torch.ones(1001, requires_grad=True)  # no module was called yet
            x = Exp()(torch.ones(1003, requires_grad=True))
            x.sin().sum().backward()
            with gpuledger.scope("late"):
                torch.ones(1005)
            torch.ones(1007)
        torch.ones(1009)
        ended.set()

    def program(recording: Any) -> None:
        begun.set()
        ended.wait()
        torch.ones(1011)

    thread = threading.Thread(target=work)
    thread.start()
    recorded = record_own(program)
    thread.join()
    found = scopes_by_size(recorded, "setup", "between", "forward", "backward")
    expected = {1003: "early", 1005: "early/late", 1007: "early", 1009: "", 1011: ""}
    assert {size: found[size] for size in expected} == {size: {path} for size, path in expected.items()}
    assert scopes_by_size(recorded, "backward")[1003] == {"early"}


def test_a_thread_is_first_seen_at_a_scope_inside_another_that_it_entered_before_the_recording() -> None:
    begun, ended = threading.Event(), threading.Event()

    class Waiting(torch.autograd.Function):
        """Lets the other thread enter its scope while this one is in backward."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            begun.set()
            ended.wait()
            return gradients[0]

    def work() -> None:
        with gpuledger.scope("early"):
            begun.wait()
            with gpuledger.scope("late"):
                torch.ones(1005)
            torch.ones(1007)
        torch.ones(1009)
        ended.set()

    def program(recording: Any) -> None:
        with gpuledger.scope("other thread"):
            Waiting.apply(torch.ones(3, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]

    thread = threading.Thread(target=work)
    thread.start()
    found = scopes_by_size(record_own(program), "backward")
    thread.join()
    expected = {1005: "early/late", 1007: "early", 1009: ""}
    assert {size: found[size] for size in expected} == {size: {path} for size, path in expected.items()}


def test_tasks_keep_the_scopes_that_they_entered_before_the_recording() -> None:
    made: list[Any] = []

    async def work(name: str, size: int, begun: asyncio.Event) -> None:
        with gpuledger.scope(name):
            await begun.wait()
            made.append(torch.ones(size))
            await asyncio.sleep(0)
            made.append(torch.ones(size + 1))

    async def main(tmp_path: Path) -> Any:
        begun = asyncio.Event()
        tasks = [asyncio.create_task(work(name, size, begun)) for name, size in (("a", 1001), ("b", 1003))]
        await asyncio.sleep(0)
        with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording:
            begun.set()
            await asyncio.gather(*tasks)
        return recording.run().rank()

    with tempfile.TemporaryDirectory() as directory:
        found = scopes_by_size(read_recorded(asyncio.run(main(Path(directory)))), "between")
    expected = {1001: "a", 1002: "a", 1003: "b", 1004: "b"}
    assert {size: found[size] for size in expected} == {size: {path} for size, path in expected.items()}


def test_tasks_that_take_turns_keep_their_scopes_in_the_recording() -> None:
    handle = asyncio.events.Handle._run  # type: ignore[attr-defined]

    async def work(name: str, size: int) -> None:
        with gpuledger.scope(name):
            for _ in range(3):
                await asyncio.sleep(0)
                torch.ones(size)
        await asyncio.sleep(0)
        torch.ones(size + 100)

    async def main() -> None:
        await asyncio.gather(work("a", 1001), work("b", 1003))

    def program(recording: Any) -> None:
        asyncio.run(main())
        torch.ones(1009)

    found = scopes_by_size(record_own(program), "between")
    assert {size: found[size] for size in (1001, 1003)} == {1001: {"a"}, 1003: {"b"}}
    assert {size: found[size] for size in (1101, 1103, 1009)} == {1101: {""}, 1103: {""}, 1009: {""}}
    assert asyncio.events.Handle._run is handle  # type: ignore[attr-defined]


def test_any_name_arrives() -> None:
    name = "ü/ﬀ\n\t\"',~.:" + "\ud800" + "x" * 5000

    def program(recording: Any) -> None:
        with gpuledger.scope(name):
            torch.ones(1001)

    found = scopes_by_size(record_own(program), "between")[1001]
    assert found == {name.replace("\ud800", "\\ud800")}


def test_nothing_is_left_when_the_recording_ends_inside_a_scope() -> None:
    def program(recording: Any) -> Any:
        scope = gpuledger.scope("open")
        scope.__enter__()
        return scope

    record_own(program)
    assert scopes._listener is None  # whoever listens cannot be asked for, and hears nothing after its end
    assert current_path() == "open"
    gpuledger.scope("open").__exit__(None, None, None)
    assert current_path() == ""


def test_a_decorated_function_says_its_scope_each_time_it_is_called() -> None:
    @gpuledger.scope("inner")
    def make(size: int) -> torch.Tensor:
        return torch.ones(size)

    @gpuledger.scope("outer")
    def around(size: int, *, fail: bool = False) -> None:
        for number in range(2):
            torch.ones(size + number)
            make(size + 2 + number)
        torch.ones(size + 4 // (not fail))

    def program(recording: Any) -> None:
        for size in (1000, 2000):
            around(size)
            torch.ones(size + 5)
        with pytest.raises(ZeroDivisionError):
            around(3000, fail=True)
        torch.ones(3005)

    found = scopes_by_size(record_own(program), "between")
    expected = {0: "outer", 1: "outer", 2: "outer/inner", 3: "outer/inner", 4: "outer", 5: ""}
    for size in (1000, 2000):
        assert {number: found[size + number] for number in expected} == {n: {path} for n, path in expected.items()}
    assert [found[3000 + number] for number in (1, 3, 5)] == [{"outer"}, {"outer/inner"}, {""}]


def test_recordings_end_and_begin_inside_a_decorated_function(tmp_path: Path) -> None:
    first, second = (gpuledger.record(out=tmp_path / name, devices="cpu") for name in ("first", "second"))

    @gpuledger.scope("open")
    def change(number: int) -> None:
        if number == 1:
            first.__exit__(None, None, None)
            second.__enter__()

    first.__enter__()
    change(0)
    change(1)
    after = torch.ones(10_000_001)  # more than other tests may have left alive
    assert (current_path(), scopes._runner is not None) == ("", True)  # as above
    second.__exit__(None, None, None)
    assert scopes._runner is None
    del after
    databases = break_down(second.run().rank(), find_peak(second.run().rank()), ("scope",))
    assert [account.scope for account in databases.accounts if account.bytes >= 40_000_004] == [""]


def test_a_compiled_region_with_scopes_is_one_graph_and_is_not_compiled_again() -> None:
    from torch._dynamo.testing import CompileCounter

    @gpuledger.scope("decorated")
    def function(x: torch.Tensor) -> torch.Tensor:
        with gpuledger.scope("inside"):
            return x.sin() + 1

    torch._dynamo.reset()
    with gpuledger.scope("torch was imported after gpuledger.scope"):
        pass
    counter = CompileCounter()
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    x = torch.ones(1001, requires_grad=True)
    expected = x.sin() + 1
    assert torch.equal(compiled(x), expected)

    def program(recording: Any) -> None:
        with gpuledger.scope("outside"):
            compiled(x).sum().backward()

    found = scopes_by_size(record_own(program), "setup", "between", "backward")
    assert found[1001] == {"outside"}
    assert torch.equal(compiled(x), expected)
    assert (counter.frame_count, current_path()) == (1, "")


def test_a_breakdown_by_scope_folds_nested_ones(tmp_path: Path) -> None:
    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording, gpuledger.scope("a"):
        with gpuledger.scope("b"):
            inner = torch.ones(1001)
        with gpuledger.scope("c"):
            more = torch.ones(1003)
    del inner, more
    rank = recording.run().rank()
    for depth, expected in ((None, {"a/b": 4004, "a/c": 4012}), (1, {"a": 8016})):
        databases = break_down(rank, find_peak(rank), ("scope",), depth)
        assert {account.scope: account.bytes for account in databases.accounts if account.scope} == expected
        groups = {group.label: group.bytes for group in group_accounts(databases.accounts, "scope")}
        assert sum(groups.values()) == databases.allocated_bytes
        assert set(groups) <= {*expected, NO_SCOPE}


def test_a_scope_made_outside_a_compiled_region_holds_where_the_graph_breaks() -> None:
    shared, seen = gpuledger.scope("shared"), []
    look = torch._dynamo.disable(lambda: seen.append(current_path()))

    def function(x: torch.Tensor) -> torch.Tensor:
        with shared:
            look()
            y = x.sin()
        look()
        return y + 1

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager")
    x = torch.ones(3)
    for _ in range(3):
        assert torch.equal(compiled(x), x.sin() + 1)
    assert seen == ["shared", ""] * 3
    assert current_path() == ""
