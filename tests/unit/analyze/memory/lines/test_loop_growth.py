"""What the iterations of a loop keep is growth; layers, weights and what has a bound are not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from torch import nn

from gpuledger import record
from gpuledger.analyze.memory.failures import oom
from gpuledger.analyze.memory.failures.failed_request import FailedState, FreeBytes
from gpuledger.analyze.memory.lifetimes import allocated_curve, read_lives
from gpuledger.analyze.memory.lines.loop_growth import LoopGrowth, find_loop_growth
from gpuledger.model.flight_facts import FailedAllocation
from gpuledger.model.manifest import Window
from gpuledger.model.run import Rank

pytestmark = pytest.mark.torch

ROUNDS = 24
KEPT = 4 * 64 * 64
"""Bytes of a tensor that an iteration keeps."""


class Model(nn.Module):
    """Eight layers, called in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
            x = x + 1
        return x


def answer(model: Model, x: torch.Tensor) -> torch.Tensor:
    hidden = model(x)
    return hidden * 2


# -- what grows --------------------------------------------------------------------------------------------------------


def cache_of_a_server() -> object:
    model, cache = Model(), {}
    with torch.no_grad():
        for number in range(ROUNDS):
            x = torch.randn(64, 64)
            cache[number] = answer(model, x)
    return cache


def graphs_of_a_total() -> object:
    model, total = Model(), torch.zeros(())
    for _ in range(ROUNDS):
        x = torch.randn(64, 64)
        total = total + answer(model, x).mean()
    return total


def results_without_modules() -> object:
    results = []
    with torch.inference_mode():
        for _ in range(ROUNDS):
            x = torch.randn(64, 64)
            results.append(x.square())
    return results


def answers_of_other_sizes() -> object:
    model, cache = Model(), []
    with torch.no_grad():
        for number in range(ROUNDS):
            x = torch.randn(1 + 37 * number % 64, 64)
            cache.append(answer(model, x))
    return cache


def answers_in_one_line() -> object:
    model, x = Model(), torch.randn(64, 64)
    with torch.no_grad():
        return [model(x) for _ in range(ROUNDS)]


def hidden_states_of_a_script() -> object:
    cell, x, states = nn.RNNCell(64, 64), torch.randn(64, 64), []
    with torch.no_grad():
        for _ in range(ROUNDS):
            states.append(cell(x))
    return states


# -- what does not -----------------------------------------------------------------------------------------------------


def forward_of_many_layers() -> object:
    model = Model()
    model.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(ROUNDS))
    return model(torch.randn(64, 64))


def layers_in_a_script() -> object:
    layers = [nn.Linear(64, 64) for _ in range(ROUNDS)]
    x = torch.randn(64, 64)
    for layer in layers:
        x = torch.tanh(layer(x))
        x = x + 1
    return x


def layers_without_modules() -> object:
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(ROUNDS)]
    x = torch.randn(64, 64)
    for weight in weights:
        x = torch.tanh(x @ weight)
        x = x.relu() + 1
    return x


def queue_with_a_bound() -> object:
    model, last = Model(), deque[torch.Tensor](maxlen=4)
    with torch.no_grad():
        for _ in range(ROUNDS):
            x = torch.randn(64, 64)
            last.append(answer(model, x))
    return last


def first_answers_only() -> object:
    model, first = Model(), []
    with torch.no_grad():
        for number in range(ROUNDS):
            x = torch.randn(64, 64)
            found = answer(model, x)
            if number < 6:
                first.append(found)
    return first


class Recurrent(nn.Module):
    """One cell, called for each element of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [x[0]]
        for one in x:
            state = self.cell(one, states[-1])
            states.append(state + 1)
        return torch.stack(states)


def a_long_sequence() -> object:
    return Recurrent()(torch.randn(ROUNDS, 64, 64))


def layers_in_one_line() -> object:
    layers, x = [nn.Linear(64, 64) for _ in range(ROUNDS)], torch.randn(64, 64)
    for layer in layers:
        x = layer(x)
    return x


def queue_of_answers_in_one_line() -> object:
    model, x, last = Model(), torch.randn(64, 64), deque[torch.Tensor](maxlen=4)
    with torch.no_grad():
        last.extend(model(x) for _ in range(ROUNDS))
    return last


def weights_in_a_loop() -> object:
    model = nn.Sequential()
    for _ in range(ROUNDS):
        layer = nn.Linear(64, 64)
        model.append(nn.Sequential(layer, nn.Linear(64, 64)))
    return model(torch.randn(2, 64))


def nothing_is_kept() -> object:
    model, found = Model(), None
    for _ in range(ROUNDS):
        x = torch.randn(64, 64)
        found = answer(model, x)
    return found


def more_after_a_loop() -> object:
    loaded = []
    with torch.no_grad():
        for _ in range(ROUNDS):
            x = torch.randn(64, 64)
            loaded.append(x.square())
        more = torch.ones(64, 64)
    return loaded, more


def few_rounds() -> object:
    cache = []
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(64, 64)
            cache.append(x.square())
    return cache


def grown_in(work: Callable[[], object], directory: Path, *, has_graphs: bool) -> LoopGrowth | None:
    """Return the growth at the peak, as if a request had failed there."""
    with record(out=directory / "run", devices="cpu") as recording:
        kept = work()
    del kept
    rank = recording.run().rank(0)
    curve = allocated_curve(read_lives(rank, -1))
    return find_loop_growth(rank, -1, int(curve.index[curve.bytes.argmax()]), has_graphs=has_graphs)


GROWING = [
    (cache_of_a_server, "hidden * 2", 1.0),
    (results_without_modules, "results.append", 1.0),
    (answers_of_other_sizes, "hidden * 2", 0.5),
]


@pytest.mark.parametrize(("work", "kept_at", "kept"), GROWING)
def test_what_iterations_keep_has_the_loop_and_the_line(
    work: Callable[[], object], kept_at: str, kept: float, tmp_path: Path
) -> None:
    found = grown_in(work, tmp_path, has_graphs=False)
    assert found is not None
    assert found.iterations >= ROUNDS - 2
    assert found.line.endswith(f" {work.__name__}")
    assert kept * KEPT * 0.9 <= found.iteration_bytes <= kept * KEPT * 1.1
    assert 0.9 <= found.grown_bytes / (kept * KEPT * found.iterations) <= 1.1
    text = Path(__file__).read_text().splitlines()[int(found.kept_line.partition(":")[2].split()[0]) - 1]
    assert kept_at in text


def test_graphs_that_a_total_keeps_are_growth(tmp_path: Path) -> None:
    found = grown_in(graphs_of_a_total, tmp_path, has_graphs=True)
    assert found is not None
    assert found.iterations >= ROUNDS - 2
    assert found.iteration_bytes >= 8 * KEPT


@pytest.mark.parametrize("work", [answers_in_one_line, hidden_states_of_a_script])
def test_without_a_loop_of_two_lines_calls_of_the_model_are_its_iterations(
    work: Callable[[], object], tmp_path: Path
) -> None:
    found = grown_in(work, tmp_path, has_graphs=False)
    assert found is not None
    assert found.line == ""
    assert found.iterations == ROUNDS - 1
    assert found.iteration_bytes == KEPT
    assert found.grown_bytes == KEPT * (ROUNDS - 1)
    assert found.kept_line


@pytest.mark.parametrize(
    ("work", "has_graphs"),
    [
        (a_long_sequence, True),
        (a_long_sequence, False),
        (layers_in_one_line, True),
        (layers_in_one_line, False),
        (queue_of_answers_in_one_line, False),
        (forward_of_many_layers, True),
        (forward_of_many_layers, False),
        (layers_in_a_script, True),
        (layers_without_modules, True),
        (queue_with_a_bound, False),
        (first_answers_only, False),
        (weights_in_a_loop, True),
        (nothing_is_kept, True),
        (more_after_a_loop, False),
        (few_rounds, False),
    ],
)
def test_other_loops_do_not_grow(work: Callable[[], object], has_graphs: bool, tmp_path: Path) -> None:
    assert grown_in(work, tmp_path, has_graphs=has_graphs) is None


class FailedRank(Rank):
    """A recording of CPU tensors as that of a GPU, on which a request failed at the end."""

    def table(self, name: str, columns: tuple[str, ...] | None = None) -> pa.Table:
        table = super().table(name)
        if name in ("blocks", "counters"):
            rows = [{**row, "device_idx": 0} for row in table.to_pylist()]
            if name == "counters":
                rows[-1]["reason"] = "oom"
            table = pa.Table.from_pylist(rows, schema=table.schema)
        return table if columns is None else table.select(columns)


@pytest.mark.parametrize(
    ("work", "last_step", "kind"),
    [(cache_of_a_server, None, "growth"), (cache_of_a_server, 1, "growth"), (queue_with_a_bound, None, "full")],
)
def test_a_loop_that_never_ends_explains_an_error(
    work: Callable[[], object], last_step: int | None, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with record(out=tmp_path / "run", devices="cpu") as recording:
        kept = work()
    rank = recording.run().rank(0)
    in_use = int(rank.table("counters", ("allocated_bytes",)).column(0)[-1].as_py())
    state = FailedState(in_use, in_use, 1, {}, {}, 1.0, FreeBytes(), 0)
    monkeypatch.setattr(oom, "read_failed_state", lambda *_: state)
    failure = FailedAllocation(device_idx=0, tried_bytes=KEPT, total_bytes=1 << 30, step=1, grad_enabled=False)
    window = Window(first_step=1 if last_step else None, last_step=last_step, asked=(1, 3))
    manifest = replace(rank.manifest, oom=(failure,), window=window, steps_seen=0)
    (found,) = oom.explain_oom(FailedRank(0, rank.directory, manifest), replays=False)
    del kept
    assert found.cause is not None
    assert found.cause.kind == kind
    assert ("per iteration of the loop" in found.cause.sentence) == (kind == "growth")
