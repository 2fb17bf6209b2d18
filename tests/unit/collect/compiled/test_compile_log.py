"""Compilations and graph breaks of Dynamo, read while it keeps the last ones only, become regions of the run."""

from __future__ import annotations

import sys
from types import SimpleNamespace as Thing
from typing import Any

import pytest

from gpuledger.collect.compiled import compile_log
from gpuledger.collect.compiled.compile_log import CompileLog, totals


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> Thing:
    """Stand in for Dynamo's module of figures."""
    found = Thing(metrics=[], graph_break_reasons=[])
    found.get_compilation_metrics = lambda: list(found.metrics)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", found)
    return found


def compiled(frame: str, started_us: int, name: str | None = "forward", **facts: Any) -> Thing:
    known = {"co_filename": "net.py", "co_firstlineno": 5, "duration_us": 1_000_000, "has_guarded_code": True}
    if name is None:
        known = {"duration_us": 500_000, "is_forward": False}
    return Thing(compile_id=frame, start_time_us=started_us, co_name=name, **{**known, **facts})


def test_each_compilation_counts_once_also_if_dynamo_drops_it_later(dynamo: Thing) -> None:
    dynamo.metrics = [compiled("0/0", 1, "before")]
    log = CompileLog()
    dynamo.metrics += [compiled("1/0", 2), compiled("1/0", 3, None)]
    log.read()
    log.read()
    dynamo.metrics = [compiled("1/1", 4, recompile_reason="1/0: x.size()[0] == 4      # net.py\nUser stack trace:\n")]
    log.read()
    (region,) = log.describe()["regions"]
    assert region == {
        **{"source": "net.py:5", "function": "forward", "compilations": 2, "seconds": 2.5},
        **{"recompilations": 1, "reasons": ["x.size()[0] == 4"]},
    }


def test_a_region_at_its_limit_is_known_by_its_frame(dynamo: Thing) -> None:
    log = CompileLog()
    failed = {"fail_type": "Unsupported", "fail_reason": "limit exceeded\n  Explanation: it is", "co_filename": None}
    dynamo.metrics = [compiled("3/0", 1), compiled("9/0", 2, None), compiled("3/1", 3, None, **failed)]
    log.read()
    (region,) = log.describe()["regions"]
    assert (region["compilations"], region["failure"], region["seconds"]) == (1, "limit exceeded", 1.5)


def test_a_region_for_which_inductor_makes_no_cuda_graph_says_why(dynamo: Thing) -> None:
    log = CompileLog()
    reason = (
        'skipping cudagraphs due to skipping cudagraphs due to cpu device (arg0_1). Found from : \n   File "net.py"'
    )
    dynamo.metrics = [
        compiled("0/0", 1),
        compiled("0/0", 2, None, cudagraph_skip_reason=reason),
        compiled("1/0", 3, "g"),
    ]
    log.read()
    found = {one["function"]: one.get("uncaptured") for one in log.describe()["regions"]}
    assert found == {"forward": "cpu device (arg0_1)", "g": None}


def test_a_module_of_torch_is_known_by_the_line_that_calls_it(dynamo: Thing) -> None:
    """Dynamo compiles one function of its own around all of them."""
    log = CompileLog()
    inner = {"co_filename": "/lib/torch/_dynamo/external_utils.py", "co_firstlineno": 67}
    torchs = ["Line: 511, Name: __call__, Filename: /lib/torch/_dynamo/eval_frame.py"]
    first = ["Line: 9, Name: <module>, Filename: train.py", *torchs]
    second = ["Line: 3, Name: forward, Filename: /lib/torchvision/ops.py", *torchs, "Line: 1, Name: x, Filename: <y>"]
    another = (
        "0/0: ___check_type_id(fn, 944), type=<class 'torch.nn.modules.container.Sequential'> (HINT: type Sequential)"
    )
    dynamo.metrics = [
        compiled("0/0", 1, "inner", **inner, stack_trace=first),
        compiled("0/1", 2, "inner", **inner, stack_trace=second, recompile_reason=another),
        compiled("0/0", 3, None),
        compiled("0/2", 4, "inner", **inner, recompile_reason="0/1: ___check_obj_id(L['o'], 12), type=<class 'int'>"),
    ]
    log.read()
    found = {(one["source"], one["function"]): (one["seconds"], one["reasons"]) for one in log.describe()["regions"]}
    assert found == {
        ("train.py:9", "call"): (1.5, []),
        ("/lib/torchvision/ops.py:3", "call in forward"): (1.0, ["type(fn) is Sequential"]),
        ("/lib/torch/_dynamo/external_utils.py:67", "inner"): (1.0, ["L['o'] is the same object"]),
    }


def test_code_after_a_graph_break_is_the_cost_of_the_break_in_every_caller(dynamo: Thing) -> None:
    log = CompileLog()
    stack = [Thing(filename="net.py", lineno=7), Thing(filename="layer.py", lineno=3)]
    dynamo.graph_break_reasons = [Thing(reason="backend='x' raised:\nError: no\nmore", user_stack=stack)]
    resumed = compiled("1/0", 2, "torch_dynamo_resume_in_forward_at_7", co_firstlineno=7)
    dynamo.metrics = [compiled("0/0", 1), resumed]
    log.read()
    found = log.describe()
    assert found["places"] == [
        {"source": "layer.py:3", "reason": "backend='x' raised: Error: no", "count": 1, "graphs": 1, "seconds": 1.0}
    ]
    assert [one["function"] for one in found["regions"]] == ["forward", "forward after line 7"]


def test_a_program_without_dynamo_or_with_another_form_of_it_has_no_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    log = CompileLog()
    log.read()
    assert (log.describe(), totals()) == ({}, (0, 0.0, {}))
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", Thing(get_compilation_metrics=lambda: [Thing()]))
    log.read()
    assert log.describe() == {}


def test_figures_of_another_form_are_said_and_nothing_raised(dynamo: Thing) -> None:
    dynamo.metrics = [Thing(compile_id="0/0", start_time_us="now")]
    log = CompileLog()
    assert "ValueError" in log.describe()["unread"]
    dynamo.metrics = [compiled("0/0", 1, duration_us=object())]
    log.read()
    assert "TypeError" in log.describe()["unread"]


def test_the_longest_regions_are_kept(dynamo: Thing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_log, "REGIONS", 2)
    log = CompileLog()
    dynamo.metrics = [compiled(f"{n}/0", n, f"f{n}", duration_us=n * 1_000_000) for n in (2, 1, 3)]
    log.read()
    assert [one["function"] for one in log.describe()["regions"]] == ["f3", "f2"]
