"""A pool made by a handle has memory of a CUDA graph if a live graph says so."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from gpuledger.collect.memory.captured_pools import captured_pools  # noqa: E402

pytestmark = pytest.mark.torch


class Graph:
    """Stands in for a graph."""

    def __init__(self, pool: tuple[int, int] | None) -> None:
        self.of = pool

    def pool(self) -> tuple[int, int]:
        """Return the pool as torch does."""
        if self.of is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self.of


class Special(Graph):
    """A class of the program, of which nothing may be called."""

    def pool(self) -> tuple[int, int]:
        """Fail."""
        raise AssertionError("code of the program was called")


def test_graphs_tell_their_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    kept = [Graph((0, 7)), Graph(None), Special((0, 8)), Graph((4, 0))]
    assert captured_pools([0, 3, -7, -8, -9]) == {3, -7, -8}
    kept.clear()
    assert captured_pools([0, 3, -7]) == {3}


def test_objects_are_walked_only_if_a_pool_was_made_by_a_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    def walked(_generation: int) -> list[object]:
        raise AssertionError("all objects were walked")

    monkeypatch.setattr(gc, "get_objects", walked)
    assert captured_pools([0, 0, 3]) == {3}
    assert captured_pools([]) == set()
