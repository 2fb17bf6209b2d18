"""CUDA graphs that do nothing, for tests without a GPU; the fixture ``new_graph`` makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

FUNCTIONS = ("capture_begin", "capture_end", "replay")


def graph_maker(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return a function that makes a CUDA graph that does nothing."""
    import torch

    base = torch.cuda.CUDAGraph.__mro__[1]
    for name in FUNCTIONS:
        monkeypatch.setattr(base, name, lambda self, *_, **__: None, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def new() -> Any:
        graph: Any = object.__new__(torch.cuda.CUDAGraph)
        graph._tracker = None  # since torch 2.12
        return graph

    return new


def capture(graph: Any, work: Callable[[], Any]) -> None:
    """Call ``work`` inside the capture of a graph."""
    graph.capture_begin()
    work()
    graph.capture_end()
