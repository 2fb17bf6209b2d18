"""What was read of a compiled graph is found again in another process, and used only for the same modules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from generated import load_generated

from gpuledger.collect.adapter.compiled_cache import cache_directory, keep, recall
from gpuledger.collect.adapter.inductor import CompiledGraph, Kernel, Place
from gpuledger.model.journal.journal import CACHED_CODE

FRAMES = (("net.py", 7, "forward"),)
FC = Place(11, "fc", "Linear", FRAMES)
ROOT = Place(0, "", "", FRAMES)


def graph_in(directory: Path) -> CompiledGraph:
    kernels = [Kernel(("buf0",), (), ("mm",), ((FC, 100), (ROOT, 20)))]
    return CompiledGraph(load_generated(directory), {"buf0": FC, "buf1": ROOT}, kernels)


def loaded(graph: CompiledGraph) -> CompiledGraph:
    return CompiledGraph(graph.module, unknown=CACHED_CODE)


def test_a_graph_is_found_with_the_modules_of_this_process(tmp_path: Path) -> None:
    graph = graph_in(tmp_path)
    keep(graph, tmp_path / "kept")
    found = recall(loaded(graph), tmp_path / "kept", [{"fc": (22, "Linear")}])
    assert found is not None
    fc = FC._replace(module_key=22)
    assert found.buffers == {"buf0": fc, "buf1": ROOT}
    assert found.kernels == [Kernel(("buf0",), (), ("mm",), ((fc, 100), (ROOT, 20)))]
    assert not found.unknown


@pytest.mark.parametrize("modules", [{}, {"fc": (22, "Conv2d")}, {"other": (22, "Linear")}])
def test_other_modules_are_never_taken(tmp_path: Path, modules: dict[str, tuple[int, str]]) -> None:
    graph = graph_in(tmp_path)
    keep(graph, tmp_path / "kept")
    assert recall(loaded(graph), tmp_path / "kept", [modules]) is None


def test_a_file_of_other_content_or_another_version_is_not_used(tmp_path: Path) -> None:
    graph = graph_in(tmp_path)
    kept = tmp_path / "kept"
    keep(graph, kept)
    (place,) = kept.iterdir()
    good = json.loads(place.read_text())
    for change in ({"torch": "1.0"}, {"content": "0"}, {"version": 0}, {"places": 3}, {"buffers": {"buf0": 99}}):
        place.write_text(json.dumps({**good, **change}))
        assert recall(loaded(graph), kept, [{"fc": (22, "Linear")}]) is None, change
    place.write_text("{")
    assert recall(loaded(graph), kept, [{"fc": (22, "Linear")}]) is None


def test_a_directory_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    graph = graph_in(tmp_path)
    (tmp_path / "file").write_text("")
    keep(graph, tmp_path / "file" / "below")
    assert recall(loaded(graph), tmp_path / "file" / "below", [{}]) is None


def test_the_directory_is_that_of_the_users_cache() -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/gpuledger/compiled")
    assert cache_directory({"XDG_CACHE_HOME": "not/absolute"}) == Path.home() / ".cache/gpuledger/compiled"
