"""Every function of the package runs eagerly, and is marked once."""

from __future__ import annotations

import sys
from types import CodeType, ModuleType

import pytest

pytest.importorskip("torch")

from gpuledger.collect.adapter import torch_private, uncompiled

pytestmark = pytest.mark.torch


def test_functions_of_a_module_that_is_loaded_later_are_marked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[CodeType] = []
    monkeypatch.setattr(torch_private, "never_compile", marked.append)
    monkeypatch.setattr(uncompiled, "_marked", set())
    uncompiled.keep_uncompiled()
    assert uncompiled.keep_uncompiled.__code__ in marked
    marked.clear()

    later = ModuleType("gpuledger.later")
    exec("def function():\n    return lambda: 1", vars(later))
    monkeypatch.setitem(sys.modules, later.__name__, later)
    uncompiled.keep_uncompiled()
    uncompiled.keep_uncompiled()
    assert [code.co_name for code in marked] == ["function", "<lambda>"]
