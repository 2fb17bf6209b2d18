"""Every function of the package runs eagerly, and is marked once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType

import pytest

pytest.importorskip("torch")

from torch._dynamo import trace_rules

from gpuledger.collect.adapter import dynamo, uncompiled
from gpuledger.collect.attribution import tags

pytestmark = pytest.mark.torch


def test_functions_of_a_module_that_is_loaded_later_are_marked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[CodeType] = []
    monkeypatch.setattr(dynamo, "never_compile", lambda code, **_: marked.append(code))
    monkeypatch.setattr(uncompiled, "_marked", set())
    uncompiled.keep_uncompiled()
    assert uncompiled.keep_uncompiled.__code__ in marked
    marked.clear()

    later = ModuleType("gpuledger.later")
    text = "from contextlib import contextmanager\ndef function(): return lambda: 1\n"
    text += "@contextmanager\ndef block(): yield"
    exec(compile(text, uncompiled.__file__, "exec"), vars(later))
    monkeypatch.setitem(sys.modules, later.__name__, later)
    uncompiled.keep_uncompiled()
    uncompiled.keep_uncompiled()
    assert [code.co_name for code in marked] == ["function", "<lambda>", "block"]


def test_code_that_the_program_shares_with_the_package_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def of_program() -> Iterator[None]:
        yield

    marked: list[CodeType] = []
    monkeypatch.setattr(dynamo, "never_compile", lambda code, **_: marked.append(code))
    monkeypatch.setattr(uncompiled, "_marked", set())
    uncompiled.keep_uncompiled()
    for decorated in (dynamo.without_importing_compiler, tags.suffix):
        assert vars(decorated)["__wrapped__"].__code__ in marked
    assert of_program.__code__ not in marked
    assert all("gpuledger" in code.co_filename or trace_rules.check(code) for code in marked)
