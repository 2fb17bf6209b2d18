"""Naming the frames of stacks must not import torch's compiler into the recorded program."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpuledger.collect.adapter import dynamo
from gpuledger.collect.adapter.dynamo import without_importing_compiler


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names imported on demand, in a process that has not imported the compiler yet."""
    asked: list[str] = []

    def import_module(name: str) -> Any:
        asked.append(name)
        return SimpleNamespace(config=7)

    monkeypatch.delitem(sys.modules, "torch._inductor", raising=False)
    monkeypatch.setitem(vars(torch), "_inductor", None)  # restored after the test, however the test leaves it
    del vars(torch)["_inductor"]
    monkeypatch.setattr(dynamo, "importlib", SimpleNamespace(import_module=import_module))
    return asked


def test_frames_are_named_without_the_compiler(imports: list[str]) -> None:
    gathered = torch._C._profiler.gather_traceback(python=True, script=False, cpp=False)
    with without_importing_compiler():
        assert not hasattr(torch._inductor, "codecache")
        frames = torch._C._profiler.symbolize_tracebacks([gathered])[0]
    assert frames[0]["filename"] == __file__
    assert imports == []
    assert "_inductor" not in vars(torch)
    assert "torch._inductor" not in sys.modules


def test_another_thread_gets_the_compiler_meanwhile(imports: list[str]) -> None:
    found = []
    with without_importing_compiler():
        other = threading.Thread(target=lambda: found.append(torch._inductor.config))
        other.start()
        other.join()
    assert found == [7]
    assert imports == ["torch._inductor"]


def test_a_compiler_imported_meanwhile_stays(imports: list[str]) -> None:
    real = SimpleNamespace()
    with without_importing_compiler():
        vars(torch)["_inductor"] = real
    assert vars(torch)["_inductor"] is real


def test_an_imported_compiler_is_left_alone(imports: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "torch._inductor", real)
    vars(torch)["_inductor"] = real
    with without_importing_compiler():
        assert torch._inductor is real
    assert torch._inductor is real
