"""The places of a backward graph are found again in another process, for modules of the same classes only."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.collect.adapter.compiler.backward_cache import keep_backward, recall_backward
from gpuledger.collect.adapter.compiler.compiled_autograd import Step
from gpuledger.collect.adapter.compiler.graph_nodes import CapturedGraph, FoundPlace, NodeOrigin

FRAMES = (("net.py", 7, "forward"),)
CODE = "def forward(self, primals_1, tangents_1): ..."


def steps(key: int) -> tuple[Step, ...]:
    fc = NodeOrigin(key, "fc", "Linear", FRAMES)
    root = NodeOrigin(0, "", "", FRAMES)
    return (
        Step("aten.mm.default", FoundPlace(fc, is_forward=False)),
        Step("aten.add.Tensor", FoundPlace(root, is_forward=True)),
        Step("aten.mm.default", FoundPlace(fc, is_forward=False)),
    )


def captured(key: int, class_name: str = "Linear") -> CapturedGraph:
    return CapturedGraph({"fc": (key, class_name)}, {})


def test_places_are_those_of_the_modules_of_this_process(tmp_path: Path) -> None:
    keep_backward(tmp_path, CODE, steps(11))
    assert recall_backward(tmp_path, CODE, [captured(22)]) == steps(22)


@pytest.mark.parametrize("possible", [[], [captured(22, "Conv2d")], [CapturedGraph({}, {})]])
def test_modules_of_another_class_are_never_taken(tmp_path: Path, possible: list[CapturedGraph]) -> None:
    keep_backward(tmp_path, CODE, steps(11))
    assert recall_backward(tmp_path, CODE, possible) == ()


def test_a_graph_with_other_code_or_a_damaged_file_is_unknown(tmp_path: Path) -> None:
    keep_backward(tmp_path, CODE, steps(11))
    assert recall_backward(tmp_path, f"{CODE} ", [captured(22)]) == ()
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text().replace('"steps"', '"other"'))
    assert recall_backward(tmp_path, CODE, [captured(22)]) == ()


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep_backward(tmp_path / "file", CODE, steps(11))
    assert recall_backward(tmp_path / "file", CODE, [captured(22)]) == ()
