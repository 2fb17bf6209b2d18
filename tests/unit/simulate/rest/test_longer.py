"""A program keeps as much with every step: the memory of steps that are not simulated follows from their number."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")
from loop_programs import LoopProgram, estimate_of

from gpuledger.cli.predict.documents import estimate_document
from gpuledger.cli.predict.estimate_text import interval, search_lines, verdict_line
from gpuledger.model.journal.reading import read_journal
from gpuledger.report.base.terminal import Terminal
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.estimate.child import run_as_main
from gpuledger.simulate.estimate.follow import follow
from gpuledger.simulate.estimate.forked import run_forked
from gpuledger.simulate.estimate.run import Estimate, Order, describe_order
from gpuledger.simulate.estimate.search import Search, Trial

pytestmark = pytest.mark.torch
MIB = 1 << 20
BEGIN = """
import torch
weight = torch.zeros(64, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
data = torch.utils.data.TensorDataset(torch.zeros(200, 1))
def endless():
    while True:
        yield 0
def step(kept=None, mib=4):
    weight.sum().backward()
    optimizer.step()
    if kept is not None:
        kept.append(torch.zeros(mib << 18, device="cuda"))
history = []
"""


def of(tmp_path: Path, loops: str) -> Estimate:
    found = estimate_of(tmp_path, BEGIN + textwrap.dedent(loops))
    assert not any("after the simulated steps" in note for note in found.notes)  # no error
    return found


@pytest.mark.parametrize(
    "loops",
    [
        "for number in range(200): step(history)",
        "for _ in torch.utils.data.DataLoader(data): step(history)",
        "for number, (item,) in enumerate(torch.utils.data.DataLoader(data)): step(history)",
        "for one, other in zip(range(1000), range(200)): step(history)",
        """
        number = 0
        while number < 200:
            step(history)
            number += 1
        """,
        """
        number = 0
        for _ in endless():
            step(history)
            number += 1
            if number >= 200:
                break
        """,
        """
        def train(loader):
            for number in loader:
                for _ in range(4):
                    weight.exp()
                step(history)
        for epoch in range(10):
            train(range(20))
        """,
        """
        for epoch in range(5):
            for number in range(40):
                step(history)
        """,
        """
        for trial in range(3):
            for number in range(4):
                step()
        for epoch in range(4):
            for number in range(50):
                step(history)
        """,
    ],
)
def test_the_memory_of_all_steps_is_in_the_estimate(tmp_path: Path, loops: str) -> None:
    found = of(tmp_path, loops)
    assert found.peak_allocated_bytes == pytest.approx(200 * 4 * MIB, rel=0.02)
    assert found.steps < 40
    assert found.fits
    assert any("more steps follows from this growth" in note for note in found.notes)


def test_batches_at_the_addresses_of_earlier_ones_are_not_kept(tmp_path: Path) -> None:
    """Two batches take turns at two addresses. What is kept is small beside the peak, so few steps are simulated."""
    loops = """
    for number in range(200):
        batch = torch.ones(8 << 18, device="cuda")
        step()
        history.append(torch.zeros(8 << 8, device="cuda"))
    """
    found = of(tmp_path, loops)
    assert found.steps < 10
    assert found.peak_allocated_bytes == pytest.approx(2 * 8 * MIB + 199 * 8 * 1024, abs=16 * 1024)


def test_what_each_epoch_drops_is_not_kept_in_the_next(tmp_path: Path) -> None:
    found = of(
        tmp_path,
        """
        for epoch in range(10):
            history.clear()
            for number in range(50):
                step(history)
        """,
    )
    assert found.peak_allocated_bytes == pytest.approx(50 * 4 * MIB, rel=0.03)
    assert found.fits


@pytest.mark.parametrize(
    "loops",
    [
        """
        for epoch in range(100):
            for number in range(20): step()
            history.append(torch.zeros(4 << 18, device="cuda"))
        """,
        """
        def evaluate():
            return torch.zeros(4 << 18, device="cuda")
        def train(epochs):
            for epoch in range(epochs):
                for _ in torch.utils.data.DataLoader(data): step()
                history.append(evaluate())
        for stage in range(5):
            train(20)
        """,
        """
        def loss_with_graph():
            return (torch.zeros(4 << 18, device="cuda") + weight[0]).exp().sum()
        for epoch in range(100):
            for number in range(20): step()
            history.append(loss_with_graph())
        """,
    ],
    ids=["loop", "stages", "graphs"],
)
def test_the_memory_that_each_epoch_keeps_is_in_the_estimate(tmp_path: Path, loops: str) -> None:
    found = of(tmp_path, loops)
    assert found.peak_allocated_bytes == pytest.approx(100 * 4 * MIB, rel=0.03)
    assert found.steps < 60
    (said,) = [note for note in found.notes if "Memory still grows" in note]
    assert "of the loop at script_0.py:" in said
    assert "each iteration keeps 4.0 MiB more in history" in said
    assert ("autograd graphs" in said) == ("graph" in loops)
    assert "more iterations follows from this growth." in said


def test_what_each_epoch_keeps_is_added_to_a_peak_that_is_much_larger(tmp_path: Path) -> None:
    """An epoch that adds little to the peak looks like one that adds nothing, until that is looked into."""
    loops = """
    for epoch in range(100):
        for number in range(20):
            torch.zeros(1 << 28, device="cuda")
            step()
        history.append(torch.zeros(4 << 18, device="cuda"))
    """
    found = of(tmp_path, loops)
    assert found.peak_allocated_bytes == pytest.approx((1024 + 100 * 4) * MIB, rel=0.01)
    assert found.steps < 60


def test_the_number_of_epochs_that_fit_is_told(tmp_path: Path) -> None:
    loops = """
    for epoch in range(100):
        for number in range(20): step()
        history.append(torch.zeros(4 << 28, device="cuda"))
    """
    found = of(tmp_path, loops)
    assert not found.fits
    (said,) = [note for note in found.notes if "Memory still grows" in note]
    first, fitting = re.findall(r"after (\d+) iterations .* About (\d+) of them fit", said)[0]
    usable_bytes = find_card("h200").usable_bytes
    assert int(first) + int(fitting) == pytest.approx(usable_bytes / (4 << 30), abs=2)


def test_what_each_epoch_replaces_is_not_kept(tmp_path: Path) -> None:
    loops = """
    for epoch in range(100):
        for number in range(20): step()
        best = torch.zeros(4 << 18, device="cuda")
        history = [torch.zeros(epoch % 3 + 1 << 18, device="cuda")]
    """
    found = of(tmp_path, loops)
    assert found.peak_allocated_bytes < 30 * MIB
    assert not any("Memory still grows" in note for note in found.notes)


@pytest.mark.parametrize(
    "limit",
    [
        """
        if len(history) > 100:
            history = history[1:]
        """,
        """
        if 100 < len(history):
            history.pop(0)
        """,
        "history = history[-100:]",
        """
        if number > 100:
            del history[0]
        """,
    ],
)
def test_a_container_with_a_limit_of_the_program_is_in_the_upper_bound_only(tmp_path: Path, limit: str) -> None:
    body = textwrap.indent(textwrap.dedent(limit), "    ")
    found = of(tmp_path, f"for number in range(200):\n    step(history)\n{body}")
    assert found.peak_allocated_bytes < 35 * 4 * MIB
    assert found.upper_bytes - found.peak_process_bytes > 165 * 4 * MIB


def test_a_cache_and_the_history_of_an_optimizer_are_in_the_upper_bound_only(tmp_path: Path) -> None:
    cached = of(
        tmp_path,
        """
        class Cache:
            def __init__(self):
                self.tables = {}
            def table(self, key):
                if key not in self.tables:
                    self.tables[key] = torch.zeros(1 << 20, device="cuda")
                return self.tables[key]
        cache = Cache()
        for number in range(200):
            cache.table(number % 40)
            step()
        """,
    )
    searched = of(
        tmp_path,
        """
        large = torch.zeros(1 << 19, device="cuda", requires_grad=True)
        optimizer = torch.optim.LBFGS([large], max_iter=1, history_size=50)
        def closure():
            optimizer.zero_grad()
            loss = large.square().sum()
            loss.backward()
            return loss
        for number in range(200):
            optimizer.step(closure)
        """,
    )
    for found in (cached, searched):
        assert found.peak_allocated_bytes < 45 * 4 * MIB
        assert found.upper_bytes - found.peak_process_bytes > 150 * 4 * MIB


def test_a_deque_is_filled_as_far_as_the_loop_goes(tmp_path: Path) -> None:
    loops = """
    from collections import deque
    history = deque(maxlen={})
    for number in range(200):
        step(history)
    """
    assert of(tmp_path, loops.format(60)).peak_allocated_bytes == pytest.approx(60 * 4 * MIB, rel=0.03)
    assert of(tmp_path, loops.format(900)).peak_allocated_bytes == pytest.approx(200 * 4 * MIB, rel=0.02)


def test_steps_that_keep_different_amounts_are_in_the_upper_bound_only(tmp_path: Path) -> None:
    found = of(tmp_path, "for number in range(200): step(history, 2 + number % 3)")
    assert found.peak_allocated_bytes < 30 * 4 * MIB
    assert found.upper_bytes - found.peak_process_bytes > 170 * 2 * MIB


def test_growth_without_a_known_end_is_on_the_edge_with_the_step_at_which_the_gpu_is_full(tmp_path: Path) -> None:
    found = of(tmp_path, "for _ in endless(): step(history)")
    free_bytes = found.card.usable_bytes - found.upper_bytes
    assert (found.fits, found.fit.verdict) == (False, "on the edge")
    assert found.fit.full_after_steps == found.steps + free_bytes // (4 * MIB)
    assert all(fit.verdict != "fits" for fit in found.others)
    said = f"after {found.steps} steps, {interval(found)}, full after about {found.fit.full_after_steps:,} steps)"
    assert verdict_line(found).endswith(said)
    assert estimate_document(found)["full_after_steps"] == found.fit.full_after_steps


def test_a_search_for_a_batch_is_for_the_simulated_steps_of_a_program_that_grows(tmp_path: Path) -> None:
    found = of(tmp_path, "for _ in endless(): step(history)")
    trial = Trial.of(8, found)
    assert (trial.verdict, trial.grows) == ("fits", True)
    (first, *_) = search_lines(Search(8, (trial,)), found.card, "batch", Terminal())
    assert first == "largest --batch on h200: 8 (for the simulated steps; memory grows with more of them)"
    too_large = dataclasses.replace(found.fit, upper_bytes=found.card.usable_bytes + 1)
    assert Trial.of(8, dataclasses.replace(found, fit=too_large)).verdict == "on the edge"


def test_a_number_of_steps_that_is_given_has_a_verdict_of_these(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + "for _ in endless(): step(history)")
    given = describe_order(Order((str(script),), find_card("h200"), 12), tmp_path / "run.ledger", "expected")
    assert run_forked(lambda: follow(given, lambda: run_as_main([str(script)])))["steps"] == 12
    assert "endless_bytes_per_step" not in read_journal(tmp_path / "run.ledger" / "rank-0" / "journal").facts


def test_a_program_that_was_simulated_to_its_end_has_no_growth_to_come(tmp_path: Path) -> None:
    found = of(
        tmp_path,
        """
        def train():
            for number in range(26):
                step(history)
                yield
        for _ in train(): pass
        """,
    )
    assert found.fits
    assert not any("still grows" in note for note in found.notes)


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ("for number in range(10):\n    step()\n    look()", [7]),
        ("for epoch in range(5):\n    for number in range(10):\n        step()\n        look()", [7, 40]),
        ("for number in range(10):\n    step()\n    step()\n    look()", [16]),
        ("while True:\n    step()\n    look()", [None]),
        ("for a in range(7):\n    len([])\nfor number in range(10):\n    step()\n    look()", [7]),
        ("number = 0\nwhile 20 >= number:\n    number += 1\n    step()\n    look()", [18]),
        ("for number in range(10):\n    step()\n    look()\n    if number == 5: break", [3]),
        ("def train():\n    for n in range(9): step(); look()\nfor a in range(7):\n    len([])\ntrain()", [6]),
        ("def train():\n    for n in range(9): step(); look()\nfor a in range(7):\n    train()", [6, 54]),
        ("for number in range(10):\n    step()\n    look()\n    if number < 5: continue", [7]),
    ],
)
def test_steps_left_in_the_loops_around_a_step(program: LoopProgram, source: str, left: list[int | None]) -> None:
    found: list[list[int | None]] = []

    def look() -> None:
        if program.steps == 3 or (program.steps == 4 and not found):
            found.append([one.steps_left for one in program.rest.lengths.with_steps(program.steps)])

    program.run(source, look=look)
    assert found[0] == left
