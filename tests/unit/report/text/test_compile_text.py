"""What torch.compile did is said in one line each: time, failures, recompilations, graph breaks with their cost."""

from __future__ import annotations

from gpuledger.model.compilation import Compilation, CompiledRegion, GraphBreak
from gpuledger.report.text.compile_text import compilation_texts


def test_a_run_of_an_older_version_has_graph_breaks_without_lines() -> None:
    done = Compilation(graphs=2, seconds=38.25, breaks={"Tensor.item()": 1, "print" + "x" * 200: 5})
    first, most, least = compilation_texts(done, 3)
    assert first == "38.2 s for 2 graphs of torch.compile"
    assert most == f"graph break, 5 ×: print{'x' * 95}"
    assert least == "graph break, 1 ×: Tensor.item()"
    assert compilation_texts(None, 3) == []
    assert compilation_texts(Compilation(graphs=0, seconds=0.0), 3) == [
        "torch.compile was asked for and has compiled nothing"
    ]
    unread = Compilation(graphs=1, seconds=1.0, unread="TypeError: planted")
    assert compilation_texts(unread, 3)[1:] == ["regions unknown: TypeError: planted"]


def region(name: str, **facts: object) -> CompiledRegion:
    known = {"source": f"/home/me/{name}.py:7", "function": "forward", "compilations": 1, "seconds": 1.0}
    return CompiledRegion.from_json({**known, **facts})


def test_regions_and_breaks_are_said_with_their_line_and_cost() -> None:
    regions = (
        region("same", uncaptured="mutated inputs"),
        region("once", recompilations=1, reasons=["x.size()[0] == 4"]),
        region("often", recompilations=8, reasons=["self.k == 0.0", "self.k == 1.5"], failure="limit exceeded"),
        region("never", compilations=0, failure="backend='bad' raised: RuntimeError: planted"),
    )
    places = (
        GraphBreak(source="/home/me/net.py:17", reason="call of print", count=1, graphs=0, seconds=0.0),
        GraphBreak(source="/home/me/net.py:21", reason="Tensor.item()", count=2, graphs=3, seconds=4.25),
    )
    done = Compilation(graphs=9, seconds=5.0, breaks={"ignored": 3}, regions=regions, places=places)
    assert compilation_texts(done, 2)[1:] == [
        "compiled no more: forward (often.py:7): limit exceeded",
        "not compiled: forward (never.py:7): backend='bad' raised: RuntimeError: planted",
        "no CUDA graph: forward (same.py:7): mutated inputs",
        "compiled again, 8 ×: forward (often.py:7), first reason: self.k == 0.0",
        "compiled again, 1 ×: forward (once.py:7), first reason: x.size()[0] == 4",
        "graph break, 2 ×: Tensor.item() (net.py:21), 3 more graphs in 4.2 s",
        "graph break, 1 ×: call of print (net.py:17)",
    ]
    assert len(compilation_texts(done, 1)) == 5
