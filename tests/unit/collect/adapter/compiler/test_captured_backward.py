"""What is read of a graph that compiled autograd captures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from gpuledger.collect.adapter.compiler.compiled_autograd import AutogradWatch

pytestmark = pytest.mark.torch


def test_a_graph_without_compiled_regions_has_no_copies() -> None:
    callbacks: dict[str, Any] = {}

    def observe(function: Any, begin: Any, *end: Any) -> None:
        callbacks[getattr(function, "__name__", "")] = end[0] if end else begin

    import torch._dynamo.compiled_autograd  # it is loaded with the compiler

    watch = AutogradWatch(observe)
    known = dict(watch.regions)  # also those of other watches in this process
    watch.install()
    graph = torch.fx.symbolic_trace(torch.nn.ReLU()).graph
    callbacks["begin_capture"](None, [])
    callbacks["end_capture"](SimpleNamespace(fx_tracer=SimpleNamespace(graph=graph)))
    assert watch.regions == known
