"""The main loop of a program without steps, from the lines at which it allocates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpuledger import record
from gpuledger.analyze.memory.lifetimes import allocated_curve, read_lives
from gpuledger.analyze.memory.lines.loops import FEWEST_ITERATIONS, Loop, find_loop
from gpuledger.analyze.view.view import build_view
from gpuledger.model.run import Run
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.first_screen import first_screen
from gpuledger.report.text.run_summary import run_summary_lines
from gpuledger.report.text.show_text import closing_lines

pytestmark = pytest.mark.torch


def record_work(out: Path, work: Callable[[], object]) -> Run:
    with record(out=out, devices="cpu") as recording:
        work()
    return recording.run()


def loop_of(out: Path, work: Callable[[], object]) -> Loop | None:
    return find_loop(record_work(out, work).rank(0), -1)


def distances(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    return torch.cdist(points, centres)


def cluster() -> None:
    points = torch.randn(1000, 8)
    centres = torch.randn(4, 8)
    for _ in range(12):
        apart = distances(points, centres)
        nearest = apart.argmin(1)
        centres = torch.stack([points[nearest == number].mean(0) for number in range(4)])


def denoise(x: torch.Tensor) -> torch.Tensor:
    hidden = x + 1
    return torch.tanh(hidden)


def sample() -> None:
    x = torch.randn(64, 64)
    for _ in range(7):
        for _ in range(3):
            noise = denoise(x)
            x = x - noise
        x = x * 0.5


def squared(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(x @ weight)
    return hidden.square().mean()


def descend() -> None:
    x, weight = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    for _ in range(6):
        loss = squared(x, weight)
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad  # type: ignore[operator]
            weight.grad = None


BIG = 1 << 20


def loop_then_big() -> torch.Tensor:
    x = torch.ones(64)
    for _ in range(6):
        y = x + 1
        z = y * 2
        x = z - y
    return torch.ones(BIG)  # in a later line of the same function


def loop_in_a_call_then_big() -> torch.Tensor:
    x = halved(torch.ones(64))
    return x + torch.ones(BIG)[:64]


def halved(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        y = x + 1
        x = y * 0.5
    return x


def big_in_the_last() -> None:
    x, sizes = torch.ones(64), [64] * 5 + [BIG]
    for size in sizes:
        y = x + 1
        z = torch.ones(size)
        x = y + z[:64]


def powers(matrix: torch.Tensor) -> torch.Tensor:
    found = matrix + 1
    for _ in range(3):
        scaled = found / 2
        found = matrix @ scaled
    return found - matrix


def powers_thrice() -> None:
    matrix = torch.randn(16, 16)
    for _ in range(3):
        assert powers(matrix).shape == matrix.shape


class BlockMomentum(torch.optim.Optimizer):
    """Allocates in a loop over the weights, and fails at the last of them."""

    def __init__(self, weights: list[torch.nn.Parameter]) -> None:
        super().__init__(weights, {})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            assert weight.grad is not None
            momentum = weight.grad * 0.9
            outer = momentum[:, None] * momentum
            for name in ("left", "right", "middle"):
                self.state[weight][name] = outer + 1
            if len(weight) == 9:
                raise ValueError("no such block")


def step_that_fails() -> None:
    weights = [torch.nn.Parameter(torch.ones(size)) for size in range(2, 10)]
    sum(weight.sum() for weight in weights).backward()  # type: ignore[union-attr]
    with contextlib.suppress(ValueError):
        BlockMomentum(weights).step()


def straight() -> None:
    x = torch.randn(64, 64)
    y = x + 1
    z = y * 2
    assert z.shape == x.shape


def few() -> None:
    for _ in range(FEWEST_ITERATIONS - 1):
        x = torch.randn(64, 64)
        y = x + 1
        assert y.shape == x.shape


def line_of(function: Callable[[], object], text: str) -> str:
    code = function.__code__
    lines = Path(__file__).read_text().splitlines()[code.co_firstlineno - 1 :]
    number = code.co_firstlineno + next(place for place, line in enumerate(lines) if text in line)
    return f":{number} {code.co_name}"


def test_each_iteration_of_a_loop_is_found(tmp_path: Path) -> None:
    loop = loop_of(tmp_path / "run", cluster)
    assert loop is not None
    assert loop.iterations == 12
    assert loop.line.endswith(line_of(cluster, "apart = "))
    assert loop.allocated_bytes >= 1000 * 4 * 4 + 1000 * 8
    assert loop.peak_bytes >= 1000 * 8 * 4 + 1000 * 4 * 4
    assert 1 <= loop.peak_iteration <= 12
    assert loop.iteration_ns > 0


def test_of_nested_loops_it_is_the_one_with_most_allocations(tmp_path: Path) -> None:
    loop = loop_of(tmp_path / "run", sample)
    assert loop is not None
    # both loops begin at the same allocating line, so that the iterations are those of the inner one
    assert loop.iterations == 21
    assert loop.line.endswith(line_of(sample, "noise = "))


def test_backward_on_the_lines_of_forward_begins_no_iteration(tmp_path: Path) -> None:
    loop = loop_of(tmp_path / "run", descend)
    assert loop is not None
    assert loop.iterations == 6
    assert loop.line.endswith(line_of(descend, "loss = "))


@pytest.mark.parametrize("work", [loop_then_big, loop_in_a_call_then_big])
def test_what_follows_the_loop_is_in_no_iteration(tmp_path: Path, work: Callable[[], object]) -> None:
    rank = record_work(tmp_path / "run", work).rank(0)
    loop = find_loop(rank, -1)
    assert loop is not None
    assert loop.iterations == 6
    assert loop.peak_bytes < allocated_curve(read_lives(rank, -1)).bytes.max() - 3 * BIG


def test_the_last_iteration_can_be_the_highest(tmp_path: Path) -> None:
    loop = loop_of(tmp_path / "run", big_in_the_last)
    assert loop is not None
    assert (loop.iterations, loop.peak_iteration) == (6, 6)
    assert loop.peak_bytes >= 4 * BIG


def test_a_loop_that_is_entered_again_begins_another_iteration(tmp_path: Path) -> None:
    loop = loop_of(tmp_path / "run", powers_thrice)
    assert loop is not None
    assert loop.iterations == 9
    assert loop.line.endswith(line_of(powers, "scaled = "))  # type: ignore[arg-type]


def test_the_loop_of_an_optimizer_over_its_weights_is_none_of_the_programs(tmp_path: Path) -> None:
    assert loop_of(tmp_path / "run", step_that_fails) is None


@pytest.mark.parametrize("work", [straight, few])
def test_without_repetition_there_is_no_loop(tmp_path: Path, work: Callable[[], object]) -> None:
    assert loop_of(tmp_path / "run", work) is None


def test_a_program_without_modules_is_shown_by_line_and_loop(tmp_path: Path) -> None:
    view = build_view(record_work(tmp_path / "run", cluster))
    text = "\n".join(first_screen(view, Terminal(200)))
    assert "Largest lines" in text
    assert "12 iterations" in text
    assert "while recorded" in text
    assert "Largest modules" not in text
    after_run = "\n".join(run_summary_lines(view.run, Terminal(200)))
    for lines in (after_run, "\n".join(closing_lines(view, "NAME", Terminal(200)))):
        assert "--by line" in lines  # the only module would be `(outside modules)`
        assert "--by module" not in lines


def test_a_training_has_steps_and_no_loop(tmp_path: Path) -> None:
    def train() -> None:
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(6):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()

    view = build_view(record_work(tmp_path / "run", train))
    assert view.highest.loop is None
    assert view.highest.uses_modules
