"""Versions of DeepSpeed with other methods: said in programs that use ZeRO, and not where it is only imported."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

pytest.importorskip("torch")
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.sharding.marked_calls import ShardingContext
from gpuledger.collect.sharding.zero_partitions import (
    PARTS_CLASS,
    PARTS_MODULE,
    WHOLE_CLASS,
    WHOLE_MODULE,
    ZeroPartitions,
)

pytestmark = pytest.mark.torch


class Whole:
    """An optimizer of stages 1 and 2 without other methods."""

    def step(self) -> str:
        """Return the program's result."""
        return "stepped"


class Parts:
    """An optimizer of stage 3 without other methods."""

    def _pre_step(self) -> None:
        pass


def test_an_unknown_version_is_noted_at_the_first_step_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind, found in ((WHOLE_MODULE, WHOLE_CLASS, Whole), (PARTS_MODULE, PARTS_CLASS, Parts)):
        module: Any = types.ModuleType(name)
        setattr(module, kind, found)
        monkeypatch.setitem(sys.modules, name, module)
    notes: list[str] = []
    observed: Any = types.SimpleNamespace(owners=dict, see=list, parts=set(), of_frameworks=set())
    other: Any = types.SimpleNamespace()
    errors: list[BaseException] = []
    context = ShardingContext(other, other, observed, lambda _: None, Guard(errors.append), notes.append)
    zero = ZeroPartitions(context)
    zero.install()
    try:
        assert notes == []
        assert [Whole().step(), Whole().step()] == ["stepped", "stepped"]
    finally:
        zero.remove()
    assert errors == []
    assert len(notes) == 1
    assert "reduce_independent_p_g_buckets_and_remove_grads" in notes[0]
