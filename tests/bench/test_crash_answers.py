"""The questions about a crash: what is read out of each tool's files, and how it is graded."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from failing_allocator import FACTS, MIB, Recorded, card, snapshot
from folders import BENCH
from pages import out_of_memory as page
from torch import nn

sys.path.insert(0, str(BENCH / "lib"))
sys.path.insert(0, str(BENCH / "memory"))

import crash_facts
import out_of_memory
from crash_answers import ANSWERS, FILE, QUESTIONS, Crash, answers_of, grade_lines_again
from crash_programs import HOLDERS, HOLDING, PROGRAMS, evaluation, fragmentation, private_pool

from gpuledger.report.json.document import oom_document

__all__ = ["card"]

Card = Callable[[dict[str, Any], int], None]
RESULTS = json.loads((BENCH / "memory" / "results" / "h200" / "out_of_memory.json").read_text(encoding="utf-8"))
LINE = {"filename": f"/bench/lib/{FILE}", "line": 12, "name": "block"}
OTHER = {"filename": "/torch/nn/functional.py", "line": 3, "name": "linear"}


def crash(planted: str, message: str = "", taken: dict[str, Any] | None = None, **told: Any) -> Crash:
    return Crash(planted, message, (f"{FILE}:12",), taken, told.get("failure"), told.get("growth", ()))


def taken(live: list[int], free: list[int], tried: int, private: list[int]) -> dict[str, Any]:
    found = snapshot(live, free, private_free=private)
    for number, one in enumerate(block for segment in found["segments"] for block in segment["blocks"]):
        one["frames"] = [OTHER, {**LINE, "line": 12 + (number == 0)}]
    found["device_traces"] = [[{"action": "oom", "size": tried, "frames": [OTHER, LINE]}]]
    return found


@pytest.mark.parametrize("name", RESULTS["programs"])
def test_messages_of_an_h200_have_the_request(name: str) -> None:
    found = RESULTS["programs"][name]
    told = {question: read(crash(found["planted"], found["error"])) for question, read in ANSWERS["message"].items()}
    is_the_allocators = found["error"].startswith("OutOfMemoryError")
    assert (told["request"] is not None) == (told["allocated"] is not None) == is_the_allocators
    assert (told["others"] is not None) == (name == "second_process")
    assert (told["private"] is not None) == (name == "private_pool")
    assert (told["limit"] is not None) == (name in ("fragmentation", "memory_fraction"))


def test_a_snapshot_is_read_by_its_blocks_and_frames() -> None:
    one = crash("fragmentation", taken=taken([9 * MIB, 4 * MIB, 6 * MIB], [3 * MIB, 2 * MIB], 4 * MIB, [MIB]))
    facts = {
        **{"cause": "fragmentation", "tried_bytes": 4 * MIB, "request_line": f"{FILE}:12", "step": 19},
        **{"allocated_bytes": 19 * MIB, "idle_bytes": 7 * MIB, "private_bytes": MIB, "weight_bytes": MIB},
        "holding_line": f"{FILE}:12",
    }
    grades = {name: one.grade for name, one in answers_of("snapshot", one, facts).items()}
    right = dict.fromkeys(("cause", "request", "line", "allocated", "private", "holding_line"), "right")
    assert grades == {**right, "idle": "wrong", "step": "missing", "weights": "missing"}
    assert answers_of("snapshot", one, {**facts, "idle_bytes": 6 * MIB})["idle"].grade == "right"


def test_a_cause_that_the_sizes_do_not_show_is_missing() -> None:
    one = crash("private_pool", taken=taken([9 * MIB], [], 4 * MIB, [2 * MIB]))
    assert answers_of("snapshot", one, {"cause": "private_pool"})["cause"].grade == "missing"
    enough = crash("private_pool", taken=taken([9 * MIB], [], 4 * MIB, [5 * MIB]))
    assert answers_of("snapshot", enough, {"cause": "private_pool"})["cause"].grade == "right"


def test_gpuledger_is_read_from_its_json(card: Card, tmp_path: Path) -> None:
    card(snapshot([20 * MIB], [2 * MIB, MIB]), 20 * MIB)
    recorded = Recorded(tmp_path)
    recorded.failures.happened({**FACTS, "tried_bytes": 4 * MIB}, 7)
    failure = oom_document(0, recorded.explain())
    holder = {"name": "outputs"}
    growth = ({"device_idx": 0, "step_bytes": 5.0 * MIB, "holder": holder, "line": f"{FILE}:12 in block"},)
    facts: dict[str, Any] = {"tried_bytes": 4 * MIB, "step": 7, "allocated_bytes": 20 * MIB, "idle_bytes": 3 * MIB}
    facts |= {"growth_bytes": 5 * MIB, "holder": "outputs", "holding_line": f"{FILE}:12", "weight_bytes": MIB}
    found = answers_of("gpuledger", crash("", failure=failure, growth=growth), facts)
    assert {name: one.grade for name, one in found.items() if one.grade != "right"} == {"weights": "missing"}
    assert set(found) == {name for name, one in QUESTIONS.items() if one.fact in facts}


def test_a_line_is_an_answer_only_if_it_has_more_than_all_blocks_without_a_line() -> None:
    lines = {f"/home/me/{FILE}:12 in block": 3 * MIB, f"/home/me/{FILE}:13 in step": MIB}
    for allocated, answer in ((5 * MIB, f"{FILE}:12"), (8 * MIB, None)):
        state = {"lines": lines, "allocated_bytes": allocated}
        assert ANSWERS["gpuledger"]["holding_line"](crash("", failure={"state": state})) == answer


def test_lines_of_a_result_are_graded_again() -> None:
    state = {"lines": {f"/home/me/bench/lib/{FILE}:12 in block": 3 * MIB}, "allocated_bytes": 3 * MIB}
    wrong = {"grade": "wrong", "value": "x"}
    program: dict[str, Any] = {
        "planted": "growth",
        "failure": {"state": state},
        "truth": {"holding_line": f"{FILE}:12", "step": 7},
        "answers": {"gpuledger": {"holding_line": wrong, "step": wrong}},
    }
    grade_lines_again(program)
    right = {"grade": "right", "value": f"{FILE}:12"}
    assert program["failure"]["state"]["lines"] == {f"bench/lib/{FILE}:12 in block": 3 * MIB}
    assert program["answers"]["gpuledger"] == {"holding_line": right, "step": wrong}


class Failing(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError(f"Tried to allocate 4.00 MiB for {tuple(value.shape)}")


def test_the_truth_is_that_of_the_traceback() -> None:
    model = nn.Sequential(nn.Identity(), Failing())
    with pytest.raises(torch.OutOfMemoryError) as raised:
        model(torch.ones(3, 2))
    found = crash_facts.facts_of(raised.value, Path(__file__), model)
    assert found["request_module"] == "1"
    assert found["request_inputs"] == "3 x 2"
    assert found["request_line"].startswith("test_crash_answers.py:")


def test_a_program_without_gpuledger_is_asked_through_its_message_and_its_snapshot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fragments() -> None:
        monkeypatch.setitem(crash_facts.TOLD, "step", 19)
        observers[0](0, 4 * MIB, 80 * MIB, 0)
        raise torch.OutOfMemoryError("Tried to allocate 4.00 MiB. 6.00 MiB is reserved by PyTorch but unallocated")

    observers: list[Callable[..., None]] = []
    dumped = taken([9 * MIB], [4 * MIB, 2 * MIB], 4 * MIB, [])
    stats = {"allocated_bytes.all.current": 9 * MIB, "reserved_bytes.all.current": 15 * MIB}
    attach = "_cuda_attach_out_of_memory_observer"
    monkeypatch.setattr(torch._C, attach, observers.append, raising=False)
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _device: stats)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_how: None)
    monkeypatch.setattr(
        torch.cuda.memory, "_dump_snapshot", lambda place: Path(place).write_bytes(pickle.dumps(dumped))
    )
    monkeypatch.setitem(PROGRAMS, fragments, "fragmentation")
    found = out_of_memory.beside(fragments, tmp_path)
    assert found["truth"]["tried_bytes"] == 4 * MIB
    assert found["answers"]["message"]["cause"] == {"grade": "right", "value": "fragmentation"}
    assert found["answers"]["message"]["idle"]["grade"] == "right"
    assert found["answers"]["snapshot"]["idle"]["grade"] == "right"
    assert found["answers"]["snapshot"]["step"]["grade"] == "missing"
    assert found["snapshot_bytes"] > 100
    json.dumps(found)


@pytest.mark.parametrize("program", HOLDING)
def test_the_line_that_holds_most_is_in_the_programs_file(program: Callable[[], None]) -> None:
    assert crash_facts.line_of(HOLDING[program], out_of_memory.FILE).startswith(f"{FILE}:")


def test_every_program_has_a_planted_cause() -> None:
    assert {fragmentation, evaluation, private_pool} < set(PROGRAMS)
    assert set(HOLDING) | set(HOLDERS) < set(PROGRAMS)


def test_the_page_counts_right_and_wrong_answers() -> None:
    told = {"grade": "right", "value": "1"}
    assert page.answered([told, None, {**told, "grade": "wrong"}, {**told, "grade": "missing"}]) == "1 of 3, 1 wrong"
    assert page.answered([None, {**told, "grade": "missing"}]) == "–"
    program = {
        **{"took_ns": [5_000_000], "run_bytes": 2 * MIB, "without": {"snapshot_s": 0.2, "snapshot_bytes": 30 * MIB}},
        "answers": {
            "message": {},
            "snapshot": {"step": {"grade": "missing", "value": ""}},
            "gpuledger": {"step": told},
        },
    }
    lines = page.side_by_side({"questions": {"step": "In which step?"}, "programs": {"one": program}})
    assert "| In which step? | – | – | 1 of 1 |" in lines
    assert "200 to 200 ms" in " ".join(lines)
    assert "2.0 to 2.0 MiB" in " ".join(lines)
