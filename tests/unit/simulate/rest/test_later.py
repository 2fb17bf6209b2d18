"""Work that begins in a later iteration, such as a second stage if ``epoch >= 30``: a loop goes there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
from loop_programs import NEEDED, LoopProgram, estimate_of, peak_of

from gpuledger.simulate.interval import later_growth_errors
from gpuledger.units import parse_bytes

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("condition", "first"),
    [
        ("number >= 500", 500),
        ("number > 500", 501),
        ("500 <= number", 500),
        ("number == 500", 500),
        ("number + 1 > 500", 500),
        ("not number < 500", 500),
        ("number in (500, 700)", 500),
        ("number > 0.5 * total", 501),
        ("number - begin == 400", 500),
    ],
)
def test_a_loop_goes_to_where_a_condition_has_another_result(program: LoopProgram, condition: str, first: int) -> None:
    worked = program.run(f"""
        total, begin = 1000, 100
        for number in range(total):
            step()
            if {condition}:
                work(number)
    """)
    assert worked[0] == (NEEDED + 1, first)
    assert program.steps < 12
    assert program.rest.describe() == []


def test_each_of_several_stages_is_reached_in_their_order(program: LoopProgram) -> None:
    """The loop has two more iterations each time, in which a new optimizer has its states."""
    worked = program.run("""
        for epoch in range(100):
            for batch in range(20):
                step()
                if epoch == 60:
                    work("once")
            if epoch in (30, 90):
                work(epoch)
            if epoch >= 80:
                work("late")
    """)
    assert [what for _, what in worked] == [30, "once", "late", "late", "late", 90, "late", "late", "late"]


def test_counters_of_other_loops_are_increased(program: LoopProgram) -> None:
    worked = program.run("""
        class State: pass
        state = State()
        state.step = 0
        while state.step < 10_000:
            step()
            state.step += 1
            if state.step > 5000:
                work(state.step)
    """)
    assert [what for _, what in worked] == [5001, 5002, 5003]


def test_what_an_enumerated_loader_cannot_reach_is_left_out(program: LoopProgram) -> None:
    worked = program.run("""
        for epoch in range(5):
            for number, item in enumerate([1] * 50):
                step()
                if number == 49:
                    work("last")
                if number == 50:
                    work("never")
    """)
    assert {what for _, what in worked} == {"last"}


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("if number == 500: print(number)", id="reports only"),
        pytest.param("if number == 500: break", id="only ends the loop"),
        pytest.param("if number == 5000: work()", id="after the last iteration"),
        pytest.param("if number >= 1: work", id="has held"),
        pytest.param("if number == other: work()", id="another value that is no whole number"),
        pytest.param("if len(names) >= 500: work()", id="no counter"),
    ],
)
def test_other_conditions_give_no_iteration(program: LoopProgram, source: str) -> None:
    program.run(f"""
        other, names = "500", []
        for number in range(1000):
            step()
            {source}
    """)
    assert program.steps == NEEDED


def test_work_that_is_periodic_from_some_iteration_on_is_done(program: LoopProgram) -> None:
    worked = program.run("""
        for number in range(1000):
            step()
            if number > 500 and number % 100 == 50:
                work()
    """)
    assert len(worked) == 1


def test_what_was_not_reached_is_said(program: LoopProgram) -> None:
    """The rest is limited, and a note names the lines and numbers."""
    program.run("""
        def finish():
            open("somewhere", "w")

        for number in range(1000):
            step()
            if number == 400:
                finish()
            if number >= 600:
                work()
    """)
    assert program.rest.describe() == [
        "train.py:3: the simulation ended where the program writes somewhere. What follows is not included.",
        "Not simulated: what the program does at train.py:9 from number = 600 on.",
    ]


def test_periodic_work_that_adds_memory_is_repeated_as_often_as_in_the_program(program: LoopProgram) -> None:
    worked = program.run("""
        kept = []
        for number in range(48):
            step()
            use(4 * len(kept))
            if number % 10 == 9:
                kept.append(keep(1))
                work(len(kept))
    """)
    assert [what for _, what in worked] == [1, 2, 3, 4]


_UNFREEZES = """
from torch import nn
import torch
model = nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 8)).to("cuda")
model[0].requires_grad_(False)
optimizer = torch.optim.Adam(model[2].parameters())
for epoch in range(1000):
    if epoch == {first}:
        model.requires_grad_(True)
        optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, 512, device="cuda")).sum().backward()
        optimizer.step()
"""


def test_a_late_stage_needs_the_memory_of_an_early_one(tmp_path: Path) -> None:
    peaks = [peak_of(tmp_path, _UNFREEZES.replace("{first}", str(first))) for first in (1, 700)]
    assert peaks[0] == peaks[1] > 24 << 20


_LENGTHENS = """
from torch import nn
import torch
model = nn.Linear(64, 64).to("cuda")
optimizer = torch.optim.SGD(model.parameters())
for step in range({steps}):
    model(torch.randn(1000 + 900 * (step % 3), 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("steps", "ends"), [(4, False), (24, False), (200, True)])
def test_a_note_on_different_steps_says_whether_others_may_follow(tmp_path: Path, steps: int, ends: bool) -> None:
    """With 24 steps, the program ends after the last step that was needed."""
    notes = estimate_of(tmp_path, _LENGTHENS.replace("{steps}", str(steps))).notes
    (note,) = (note for note in notes if note.startswith("The steps need different amounts of memory."))
    assert note.endswith("Larger steps after these are not included.") == ends


_GROWS_LATE = """
from torch import nn
import torch
model = nn.Linear(2048, 2048).to("cuda")
optimizer = torch.optim.SGD(model.parameters())
for step in range({steps}):
    rows = {late} if step == 5 else 1000 + 300 * (step % 3)
    model(torch.randn(rows, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_upper_bound_has_more_for_later_steps_if_memory_grew_after_the_third(tmp_path: Path) -> None:
    cases = ((400, 6000), (7, 6000), (400, 1000))
    grown, whole, even = (
        estimate_of(tmp_path, _GROWS_LATE.replace("{steps}", str(steps)).replace("{late}", str(late)))
        for steps, late in cases
    )
    (note,) = (note for note in grown.notes if note.startswith("The steps need different amounts of memory."))
    said = re.search(r"Reserved memory grew by (.+) after step 3, so the upper bound has (.+) for later steps\.", note)
    assert said is not None
    grown_bytes, later_bytes = (parse_bytes(text.replace(" ", "")) for text in said.groups())
    assert later_bytes == pytest.approx(max(later_growth_errors().values()) * grown_bytes, rel=0.05)
    assert grown.fit.upper_bytes > grown.fit.process_bytes + 0.95 * later_bytes
    assert grown.peaks.reserved_bytes == whole.peaks.reserved_bytes
    for other in (whole, even):
        assert not [note for note in other.notes if "for later steps" in note]
        assert other.fit.upper_bytes < other.fit.process_bytes * 1.2


_GENERATES = """
from torch import nn
import torch
model = nn.Linear(1024, 1024).to("cuda").eval()
with torch.no_grad():
    for batch in range(5):
        cache = torch.zeros(0, 1024, device="cuda")
        for token in range(60):
            cache = torch.cat([cache, model(torch.randn(256, 1024, device="cuda"))])
"""


def test_caches_that_have_grown_to_the_end_of_their_loop_are_not_expected_to_grow_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuledger.simulate.estimate.step_plan._MOST_REQUESTS", 100)
    found = estimate_of(tmp_path, _GENERATES)
    mib = 1 << 20
    assert found.peaks.allocated_bytes == pytest.approx((60 + 59 + 2 + 4 + 32) * mib, rel=0.02)  # weights, workspace
    assert 60 <= found.steps < 120
    assert any("The steps need different amounts of memory." in note for note in found.notes)
    assert not any("for later steps" in note for note in found.notes)
    assert found.fit.upper_bytes < found.fit.process_bytes * 1.2


_LOADED = """
from torch import nn
import torch
rows = [10] * 40 + [4000, 20, 3900] + [10] * 5
model = nn.Linear(64, 64).to("cuda")
optimizer = torch.optim.SGD(model.parameters())
loader = torch.utils.data.DataLoader(rows, batch_size=1, collate_fn=lambda some: torch.randn(some[0], 64))
for batch in loader:
    model(batch.to("cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_largest_batches_of_a_loader_are_simulated(tmp_path: Path) -> None:
    """Those that are read first are alike, and say nothing of the others. With one that differs, all are read."""
    alike = estimate_of(tmp_path, _LOADED)
    assert alike.steps == 3
    found = estimate_of(tmp_path, _LOADED.replace("[10] * 40", "[10, 12] * 20"))
    (note,) = (note for note in found.notes if note.startswith("The steps need different amounts of memory."))
    assert note.endswith(" 26 steps were simulated, with the largest 2 of the next 24 batches of the DataLoader.")
    first = estimate_of(tmp_path, _LOADED.replace("[10] * 40", "[10, 4000] * 20"))
    assert [
        note
        for note in first.notes
        if note.endswith(" 24 steps were simulated, with the largest batch of the DataLoader.")
    ]
    assert found.peak_step == 25
