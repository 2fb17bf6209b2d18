"""Marks of scope changes in the profiled steps."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext

import pytest

import gpuledger

pytest.importorskip("torch")

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.passes.scope_marks import ScopeMarks

pytestmark = pytest.mark.torch


def test_a_task_is_marked_that_entered_its_scope_before_the_profile() -> None:
    marked: list[str] = []
    marks = ScopeMarks(ModuleRegistry(), Guard(lambda error: pytest.fail(str(error))))

    def open_range(name: str) -> AbstractContextManager[None]:
        marked.append(name)
        return nullcontext()

    marks._open_range = open_range

    async def work(begun: asyncio.Event) -> None:
        with gpuledger.scope("early"):
            await begun.wait()

    async def main() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(work(begun))
        await asyncio.sleep(0)
        marks.install()
        begun.set()
        try:
            await task
        finally:
            marks.remove()

    asyncio.run(main())
    early = marks._text(("early",))
    assert marked[0] == early
    assert marked[-1] != early
