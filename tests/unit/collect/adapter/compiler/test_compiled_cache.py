"""What was read of a compiled graph is found again in another process, and used only for the same modules."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from generated import load_generated

from gpuledger.collect.adapter.compiler import compiled_cache
from gpuledger.collect.adapter.compiler.compiled_cache import cache_directory, keep, recall, remember, remembered
from gpuledger.collect.adapter.compiler.graph_nodes import CapturedGraph, CompiledGraph, Kernel, NodeOrigin
from gpuledger.model.journal.journal import CACHED_CODE

FRAMES = (("net.py", 7, "forward"),)
FC = NodeOrigin(11, "fc", "Linear", FRAMES)
ROOT = NodeOrigin(0, "", "", FRAMES)


def captured(key: int, path: str = "fc", class_name: str = "Linear", line: int = 7) -> CapturedGraph:
    modules = {path: (key, class_name)}
    frames = (("net.py", line, "forward"),)
    return CapturedGraph(modules, {"x": NodeOrigin(0, "", "", ()), path: NodeOrigin(key, path, class_name, frames)})


COMPILED = [captured(11)]


def graph_in(directory: Path) -> CompiledGraph:
    kernels = [Kernel(("buf0",), (), ("mm",), ((FC, 100), (ROOT, 20)))]
    return CompiledGraph(load_generated(directory), {"buf0": FC, "buf1": ROOT}, kernels, {"true_graph_0": FC})


def loaded(graph: CompiledGraph) -> CompiledGraph:
    return CompiledGraph(graph.module, unknown=CACHED_CODE)


def test_a_graph_is_found_with_the_modules_of_this_process(tmp_path: Path) -> None:
    graph = graph_in(tmp_path)
    keep(graph, tmp_path / "kept", COMPILED)
    found = recall(loaded(graph), tmp_path / "kept", [captured(22)])
    assert found is not None
    fc = FC._replace(module_key=22)
    assert found.buffers == {"buf0": fc, "buf1": ROOT}
    assert found.bodies == {"true_graph_0": fc}
    assert found.kernels == [Kernel(("buf0",), (), ("mm",), ((fc, 100), (ROOT, 20)))]
    assert not found.unknown


OTHERS = {
    "no modules": CapturedGraph({}, {}),
    "another class": captured(22, class_name="Conv2d"),
    "another node": CapturedGraph({"fc": (22, "Linear")}, {"fc": FC}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_modules_are_never_taken(tmp_path: Path, name: str) -> None:
    graph = graph_in(tmp_path)
    keep(graph, tmp_path / "kept", COMPILED)
    assert recall(loaded(graph), tmp_path / "kept", [OTHERS[name]]) is None


def test_an_equal_block_at_another_path_has_its_own_modules_and_lines(tmp_path: Path) -> None:
    graph = graph_in(tmp_path)
    keep(graph, tmp_path / "kept", COMPILED)
    found = recall(loaded(graph), tmp_path / "kept", [captured(33, "two.fc", line=9)])
    assert found is not None
    assert found.buffers["buf0"] == NodeOrigin(33, "two.fc", "Linear", (("net.py", 9, "forward"),))


def test_code_that_can_be_of_several_graphs_is_on_the_module_around_them(tmp_path: Path) -> None:
    graph = graph_in(tmp_path)
    keep(graph, tmp_path / "kept", COMPILED)
    found = recall(loaded(graph), tmp_path / "kept", [captured(33, "h.two.fc", line=9), captured(44, "h.one.fc")])
    assert found is not None
    assert found.buffers["buf0"][:2] == (0, "h")


def test_a_graph_of_modules_that_were_not_captured_is_not_kept(tmp_path: Path) -> None:
    keep(graph_in(tmp_path), tmp_path / "kept", [captured(11, "other")])
    assert not (tmp_path / "kept").exists()


def test_a_file_of_other_content_or_another_version_is_not_used(tmp_path: Path) -> None:
    graph = graph_in(tmp_path)
    kept = tmp_path / "kept"
    keep(graph, kept, COMPILED)
    (place,) = kept.iterdir()
    good = json.loads(place.read_text())
    for change in ({"torch": "1.0"}, {"content": "0"}, {"version": 0}, {"places": 3}, {"buffers": {"buf0": 99}}):
        place.write_text(json.dumps({**good, **change}))
        assert recall(loaded(graph), kept, [captured(22)]) is None, change
    place.write_text("{")
    assert recall(loaded(graph), kept, [captured(22)]) is None


def test_a_directory_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    graph = graph_in(tmp_path)
    (tmp_path / "file").write_text("")
    keep(graph, tmp_path / "file" / "below", COMPILED)
    assert recall(loaded(graph), tmp_path / "file" / "below", COMPILED) is None


def test_old_files_make_room_also_if_another_process_deletes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_cache, "FILES", 4)
    for number in range(4):
        (tmp_path / f"{number}.json").write_text("{}")
        os.utime(tmp_path / f"{number}.json", (number, number))
    (tmp_path / "deleted.json").symlink_to(tmp_path / "nowhere")
    keep(graph_in(tmp_path), tmp_path, COMPILED)
    assert {place.name for place in tmp_path.glob("*.json")} == {"1.json", "2.json", "3.json", "cgenerated.json"}


def test_the_directory_is_that_of_the_users_cache() -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/gpuledger/compiled")
    assert cache_directory({"XDG_CACHE_HOME": "not/absolute"}) == Path.home() / ".cache/gpuledger/compiled"


def test_a_later_recording_of_the_process_knows_the_graphs_that_an_earlier_one_has_read(tmp_path: Path) -> None:
    graph = graph_in(tmp_path)
    assert remembered(loaded(graph)) is None
    remember(graph)
    assert remembered(loaded(graph)) == graph
    (tmp_path / "other").mkdir()
    assert remembered(loaded(graph_in(tmp_path / "other"))) is None
