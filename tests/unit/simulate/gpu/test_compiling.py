"""Programs that use torch.compile run uncompiled, and where they use it is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from gpuledger.simulate.gpu.compiling import COMPILED_BEFORE, run_uncompiled
from gpuledger.simulate.gpu.patches import Patches

pytestmark = pytest.mark.torch
BACKENDS: list[str] = []


def _backend(graph: Any, _inputs: Any) -> Any:
    BACKENDS.append("ran")
    return graph.forward


@pytest.fixture
def used() -> Iterator[dict[str, str]]:
    found: dict[str, str] = {}
    patches = Patches()
    BACKENDS.clear()
    run_uncompiled(patches, found.setdefault)
    yield found
    patches.undo()


def double(data: torch.Tensor) -> torch.Tensor:
    return data * 2


def test_a_compiled_model_is_used_where_it_is_compiled(used: dict[str, str]) -> None:
    model = nn.Linear(2, 2)
    assert torch.compile(model, backend=_backend) is model
    (place,) = used
    assert place.startswith("test_compiling.py:")
    model(torch.ones(1, 2))
    assert not BACKENDS


def test_a_function_is_used_when_it_is_called(used: dict[str, str]) -> None:
    doubled: Any = torch.compile(mode="reduce-overhead")(double)
    assert not used
    assert doubled(torch.ones(1)).item() == 2
    assert list(used.values()) == ["reduce-overhead"]
    assert doubled.__name__ == "double"


def test_a_model_that_compiles_itself_is_used_when_it_is_called(used: dict[str, str]) -> None:
    model = nn.Linear(2, 2)
    model.compile()
    assert not used
    model(torch.ones(1, 2))
    assert [place.split(":")[0] for place in used] == ["test_compiling.py"]


@pytest.mark.parametrize("how", [{"disable": True}, {"backend": "eager"}, {"backend": "aot_eager"}])
def test_what_generates_no_code_is_no_use(used: dict[str, str], how: dict[str, Any]) -> None:
    assert torch.compile(double, **how)(torch.ones(1)).item() == 2
    assert not used


def test_dynamo_can_be_disabled(used: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    torch.compile(double)(torch.ones(1))
    assert not used


def test_a_function_that_was_compiled_before_runs_uncompiled() -> None:
    doubled = torch.compile(double, backend=_backend)
    kept = torch._dynamo.disable(double)
    found: dict[str, str] = {}
    patches = Patches()
    BACKENDS.clear()
    run_uncompiled(patches, found.setdefault)
    try:
        assert kept(torch.ones(1)).item() == 2
        assert not found
        assert doubled(torch.ones(1)).item() == 2
    finally:
        patches.undo()
    assert list(found) == [COMPILED_BEFORE]
    assert not BACKENDS
    doubled(torch.ones(1))
    assert BACKENDS == ["ran"]


@pytest.mark.usefixtures("used")
def test_the_beginning_of_a_step_of_cuda_graphs_needs_no_cuda() -> None:
    torch.compiler.cudagraph_mark_step_begin()
