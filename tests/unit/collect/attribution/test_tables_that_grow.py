"""Tables to which another thread adds while they are read, between any two bytecodes of ours.

Each is read here with an element that adds to its table when it is looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace as Thing
from typing import Any

import pytest
import torch
from torch import nn

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.backward_nodes import BackwardNodes
from gpuledger.collect.attribution.outermost_modules import OutermostModules
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.compiled.compile_log import CompileLog
from gpuledger.collect.memory.storage_events import StorageEvents
from gpuledger.collect.memory.thread_modes import ThreadMode, ThreadModes
from gpuledger.collect.steps.step_counter import StepCounter
from gpuledger.model.journal.journal import COLUMNS, Part

pytestmark = pytest.mark.torch


class Added:
    """Calls a function whenever it is looked at: as another thread does between two bytecodes."""

    def __init__(self, add: Callable[[], object]) -> None:
        self._add = add

    def __iter__(self) -> Iterator[int]:
        self._add()
        return iter((1, 2))

    def __str__(self) -> str:
        self._add()
        return "op"

    def __gt__(self, _: object) -> bool:
        self._add()
        return False

    def of(self, _: int) -> None:
        self._add()

    @property
    def thread_id(self) -> int:
        self._add()
        return threading.get_ident()

    def keys(self) -> Any:
        self._add()
        return COLUMNS["pauses"].keys()

    def __getitem__(self, _: str) -> int:
        return 0


def growing(table: dict[Any, Any] | set[Any]) -> Added:
    """Return an object that adds to a table when it is looked at."""

    def add() -> None:
        if isinstance(table, set):
            table.add(object())
        else:
            table[f"added {len(table)}"] = []

    return Added(add)


def test_stacks_and_operators() -> None:
    stacks, storages, part = StackTable(), StorageEvents(["cpu"], lambda: ""), Part()
    placed: dict[Any, Any] = stacks._placed
    placed["frames", growing(placed)] = 3
    stacks.drain(part)
    assert part.facts["stack_modules"] == [[3, 1, 2]]
    storages._operators[growing(storages._operators)] = 0
    storages.drain(part, Thing())  # type: ignore[arg-type]
    assert part.facts["operators"] == ["op"]


def test_nodes_that_are_created_in_backward() -> None:
    nodes = BackwardNodes()
    creating: dict[Any, Any] = nodes._creating
    creating[0] = growing(creating)
    result = torch.ones(1, requires_grad=True) * 2
    nodes.after_pass(result, creates_graph=True, whole=False)
    assert not nodes._creating


def test_modules_and_steps() -> None:
    modules, counter = (
        OutermostModules(),
        StepCounter(Guard(print), before_optimizer=print, after_optimizer=print, ended=print),
    )
    modules.add(nn.Linear(1, 1), 0, is_outermost=True)
    threads: Any = Thing(get=lambda _: modules.add(nn.Linear(1, 1), len(modules._with_tensors), is_outermost=True))
    modules._threads = threads
    assert not modules.run_in_other_threads()
    begun: dict[Any, Any] = counter._begun
    begun[0] = growing(begun)
    assert not counter.failed_in_optimizer


def test_modes_of_threads() -> None:
    threads = ThreadModes(Thing(), Guard(print))  # type: ignore[arg-type]
    modes: set[Any] = threads._modes
    ended = ThreadMode(Thing(), Guard(print))  # type: ignore[arg-type]
    ended._thread = -1
    modes.update({growing(modes), ended})
    assert not threads.take_out()
    assert threads._modes is modes
    assert ended not in modes
    assert len(modes) == 2


def test_rows_of_a_part() -> None:
    part = Part()
    rows: dict[str, Any] = part.rows
    rows["pauses"] = [growing(rows)]
    counts, _ = part.packed()
    assert counts == {"pauses": 1}


def test_graph_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    log = CompileLog()
    log._breaks, log._places = {("a.py:1", "why"): 1}, {("a.py:1", "why"): (("a.py", 1),)}

    class Region:
        seconds = 1.0

        @property
        def compilations(self) -> int:
            log._breaks["b.py:1", "why"] = 1
            return 2

    log._resumed = {("a.py", 1): [Region()]}  # type: ignore[list-item]
    (place,) = log.describe()["places"]
    assert place["graphs"] == 2
