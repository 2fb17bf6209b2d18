"""Whether the readers ask every tool of the same program and the same thing: by values of a run on an H200."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT

sys.path.insert(0, str(ROOT / "bench" / "lib"))
sys.path.insert(0, str(ROOT / "bench" / "peers"))

import peer_answers
import peer_outputs
import peer_programs
from peer_answers import ANSWERS, NOTES, OTHER_PROGRAMS, QUESTIONS, Asked, more_than, order_of
from peer_grades import grade
from peer_outputs import first_of_the_largest, idle_ms, sql_value, trace_events
from side_by_side import asked_of, costs_in_all

RUN = json.loads((ROOT / "tests" / "data" / "peers" / "h200_first_run.json").read_text(encoding="utf-8"))
WORKSPACES_BYTES = 2 * (32 << 20)
"""cuBLAS on Hopper: 32 MiB for the thread of the forward pass and for that of the backward pass."""
ASKED = Asked(Path("side.ledger"), "cuda", {}, {}, Path("awake.ledger"))


def told(monkeypatch: pytest.MonkeyPatch, documents: dict[str, Any]) -> None:
    """Let ``gpuledger show`` return a document for a run."""
    monkeypatch.setattr(peer_answers, "shown", lambda run, *_words: documents[run.name])


APART = {("peak", "gpuledger"), ("peak", "mem_tracker")}
"""Values that differ from the truth of that run, each for a reason that a test below shows."""


@pytest.mark.parametrize(
    ("question", "tool"),
    sorted({(question, tool) for question, values in RUN["values"].items() for tool in values} - APART),
)
def test_recorded_values_are_right(question: str, tool: str) -> None:
    assert grade(tuple(RUN["values"][question][tool]), QUESTIONS[question][1], RUN["facts"]).grade == "right"


def test_the_recorded_peak_had_the_spike_of_a_later_step() -> None:
    rule, facts = QUESTIONS["peak"][1], RUN["facts"]
    (ours,) = RUN["values"]["peak"]["gpuledger"]
    assert grade(ours, rule, facts).grade == "wrong"
    assert grade(ours, rule, facts | {"peak_bytes": facts["peak_with_spike_bytes"]}).grade == "right"
    assert ours == facts["peak_bytes"] + facts["spike_bytes"]


def test_only_the_program_of_that_question_has_a_spike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_programs, "SPIKE_BYTES", -1)  # torch refuses to allocate that
    monkeypatch.setattr(peer_programs, "SLEEP_S", 0.0)
    monkeypatch.setattr(peer_programs, "ROWS", 2)
    for name in ("planted", "awake", "long"):
        peer_programs.build(name, "cpu", 1).take_step(peer_programs.SPIKE_STEP)
    with pytest.raises(RuntimeError, match="negative"):
        peer_programs.build(OTHER_PROGRAMS["later_step"], "cpu", 1).take_step(peer_programs.SPIKE_STEP)


def test_tensors_of_the_tracker_and_workspaces_are_the_recorded_peak() -> None:
    (value,) = RUN["values"]["peak"]["mem_tracker"]
    assert grade(value, QUESTIONS["peak"][1], RUN["facts"]).grade == "wrong"
    assert grade(value + WORKSPACES_BYTES, QUESTIONS["peak"][1], RUN["facts"]).grade == "right"
    assert "workspaces" in NOTES["mem_tracker, peak"]


def test_idle_time_is_compared_with_a_program_without_the_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, {"side.ledger": {"time": {"idle_ns": 113.8e6}}, "awake.ledger": {"time": {"idle_ns": 13.8e6}}})
    value = ANSWERS["gpuledger"]["waiting"](ASKED)
    assert value == pytest.approx(100.0)
    assert grade(value, QUESTIONS["waiting"][1], {"sleep_ms": peer_programs.SLEEP_S * 1e3}).grade == "right"
    assert more_than(5.0, None) is None
    assert asked_of("awake", "gpuledger")
    assert asked_of("awake", "profiler")
    assert not asked_of("awake", "zeus")


def test_idle_time_of_a_trace_is_without_its_overlapping_work(tmp_path: Path) -> None:
    steps = [{"name": "peer_programs.py(200): take_step", "ts": 1000.0 * one, "dur": 900.0} for one in range(4)]
    work = [
        {"name": "kernel", "cat": "kernel", "ts": 1000.0 * one + first, "dur": dur}
        for one in range(4)
        for first, dur in ((100.0, 300.0), (200.0, 50.0), (350.0, 150.0), (950.0, 100.0))
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": steps + work}))
    assert idle_ms(tmp_path / "trace.json", 1) == pytest.approx(0.5)  # 400 to 450 of the step, and 50 of the one before
    assert idle_ms(tmp_path / "trace.json", 0) == pytest.approx(1.0)
    trace_events.cache_clear()


def test_the_largest_allocation_is_the_first_of_those_that_differ_by_a_reused_block() -> None:
    sizes = [{"size": 4096}, {"size": 134217728, "first": True}, {"size": 134217728 + (1 << 20)}]
    assert first_of_the_largest(sizes, lambda one: one["size"]) == sizes[1]
    assert first_of_the_largest([], lambda one: one["size"]) is None


def test_the_inner_operator_of_a_square_counts_as_the_square() -> None:
    assert order_of(["aten::gelu", "aten::mean", "aten::pow", "aten::mean"]) == "gelu mean square"


def test_joules_of_a_step_are_read_from_the_document_by_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, {"side.ledger": {"energy": {"step_energy_j": 2.1}}})
    assert ANSWERS["gpuledger"]["step_energy"](ASKED) == 2.1


def test_the_line_of_a_failure_is_the_one_that_grew_or_else_the_one_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failure = {"device_idx": 0, "line": "peer_programs.py:72 in forward"}
    growth = [
        {"device_idx": 0, "line": "peer_programs.py:186 in take_step", "grown_bytes": 5},
        {"device_idx": -1, "line": "peer_programs.py:9 in f", "grown_bytes": 9},
    ]
    document: dict[str, Any] = {"out_of_memory": [failure], "growth": growth}
    told(monkeypatch, {"side.ledger": document})
    assert ANSWERS["gpuledger"]["out_of_memory"](ASKED) == "peer_programs.py:186"
    document["growth"] = []
    assert ANSWERS["gpuledger"]["out_of_memory"](ASKED) == "peer_programs.py:72"
    document |= {"growth": growth, "out_of_memory": []}
    assert ANSWERS["gpuledger"]["out_of_memory"](ASKED) is None


def test_lines_are_those_of_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"category": "activation", "line": "peer_programs.py:72 forward", "bytes": 2},
        {"category": "temporary", "line": "peer_programs.py:86 forward", "bytes": 3},
    ]
    told(monkeypatch, {"side.ledger": {"breakdown": rows}})
    assert ANSWERS["gpuledger"]["line"](ASKED) == "peer_programs.py:72"


@pytest.mark.parametrize(("printed", "value"), [('flops\n""\n', None), ("flops\n5.5\n", 5.5), ("", None)])
def test_the_value_of_a_query_is_none_where_it_is_null(
    monkeypatch: pytest.MonkeyPatch, printed: str, value: float | None
) -> None:
    monkeypatch.setattr(peer_outputs, "ledger", lambda *_words: printed)
    assert sql_value(Path("side.ledger"), "select 1") == value


def test_steps_are_compared_with_the_bare_ones_of_their_own_cell() -> None:
    cells = [
        {"tool": "zeus", "bare_ms": bare, "inside_ms": 2 * bare, "after_ms": bare, "output_s": 1.0, "answer_s": None}
        | {"file_bytes": 8, "cell_s": 1.0}
        for bare in (10.0, 30.0)
    ]
    found = costs_in_all([*cells, {"tool": "zeus", "error": "none"}])["zeus"]
    assert found["steps_inside"] == {"median": 2.0, "lowest": 2.0, "highest": 2.0, "n": 2}
    assert found["steps_after"]["median"] == 1.0
