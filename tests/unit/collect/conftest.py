"""What every test of the collectors begins with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from graphs_that_do_nothing import graph_maker

from gpuledger.collect.adapter import dynamo


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore observed functions and remove hooks after every test, although other tests have compiled something."""
    monkeypatch.setattr(dynamo, "compiled_frames", lambda: 0)


@pytest.fixture
def new_graph(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return a function that makes a CUDA graph that does nothing."""
    return graph_maker(monkeypatch)
