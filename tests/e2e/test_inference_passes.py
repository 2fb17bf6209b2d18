"""Inference with all passes: steps are calls, told apart by shape. A module's call has no variable of ours after it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from present import present
from programs import write_script
from quick import recorded as recorded_with

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.step.rates import find_rates
from gpuledger.analyze.step.side_by_side import lines_by
from gpuledger.analyze.step.step_parts import step_parts
from gpuledger.analyze.step.times import break_down_time
from gpuledger.cli.main import main
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

GENERATE = """
import torch
before = torch.nn.Module.__call__.__code__
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 8)
        self.head = torch.nn.Linear(8, 50)
    def forward(self, input_ids=None):
        return self.head(self.embedding(input_ids))
model = Model().eval()
with torch.no_grad():
    for _ in range(6):
        model(input_ids=torch.ones(4, 16, dtype=torch.long))
        for _ in range(4):
            model(input_ids=torch.ones(4, 1, dtype=torch.long))
print(not [name for name in torch.nn.Module.__call__.__code__.co_varnames if "gpuledger" in name])
"""


def test_a_generation_loop_is_told_apart_by_shape(tmp_path: Path) -> None:
    write_script(tmp_path, GENERATE)
    ended = recorded_with(["train.py"], tmp_path, ("-q", "--passes", "memory,energy,time"))
    assert (ended.status, ended.stdout) == (0, b"True\n")
    rank = load(tmp_path / "train.ledger").rank(0)
    assert rank.manifest.time_steps == (4, 6)
    times = break_down_time(rank)
    assert times is not None
    assert times.steps == 3
    by_phase = {line.label: line for line in lines_by(rank, break_down(rank, find_peak(rank), ("phase",)), "phase")}
    evaluated = by_phase["evaluation"]
    assert "forward" not in by_phase
    assert evaluated.bytes
    assert evaluated.evaluation_ns == present(evaluated.time_ns) > 0
    assert evaluated.forward_ns == 0
    parts = step_parts(rank)
    assert parts is not None
    by_account = {(account.module, account.phase): account for account in times.accounts}
    assert set(by_account) == {("embedding", "evaluation"), ("head", "evaluation"), ("", "between")}
    assert all(account.spans == 1 for account in by_account.values())
    evaluated_ns = by_account["embedding", "evaluation"].time_ns + by_account["head", "evaluation"].time_ns
    assert parts.evaluation_ns == pytest.approx(evaluated_ns * parts.scale)
    assert parts.forward_ns == 0
    assert dict(parts.items())["evaluation"] == parts.evaluation_ns
    assert parts.between_ns >= by_account["", "between"].time_ns * parts.scale > 0
    spans = [row for row in rank.table("spans").to_pylist() if row["kind"] == "host"]
    names = {row["name_id"]: row["name"] for row in rank.table("names").to_pylist()}
    assert {names[row["operator_id"]]: row["phase"] for row in spans} == {
        "aten::ones": "between",
        "aten::embedding": "evaluation",
        "aten::linear": "evaluation",
    }
    assert times.unplaced_ns == 0
    rates = find_rates(rank)
    assert rates is not None
    assert rates.samples_per_s is None
    prefill, decode = rates.kinds
    assert (prefill.name, prefill.rows, prefill.length) == ("prefill", 4, 16)
    assert (decode.name, decode.rows, decode.length) == ("decode", 4, 1)
    assert prefill.tokens_per_s > 0
    assert decode.token_energy_j is None


FAILS_LATE = """
import sys
import torch
{first}
model = torch.nn.Sequential(torch.nn.Linear(8, 8)).eval()
with torch.no_grad():
    for _ in range(60):
        model(torch.ones(2, 8))
        {last}
sys.exit(3)
"""


def test_calls_after_the_measurements_are_not_counted_and_the_run_says_so(tmp_path: Path) -> None:
    write_script(tmp_path, FAILS_LATE.format(first="", last=""))
    ended = recorded_with(["train.py"], tmp_path)
    run = load(tmp_path / "train.ledger")
    counted = present(run.rank(0).manifest.steps_seen)
    assert (ended.status, run.rank(0).manifest.has_all_steps) == (3, False)
    assert counted < 60
    shown = CliRunner().invoke(main, ["show", str(run.path)])
    assert f"with exit status 3 after at least {counted} steps" in shown.output
    checked = CliRunner().invoke(main, ["check", str(run.path), "--no-growth"])
    assert checked.exit_code == 5
    assert f"calls of a model are counted until the measurements end, here {counted}, and 44 steps" in checked.output
    assert "Call gpuledger.step()" in checked.output


def test_marked_calls_are_counted_until_the_end(tmp_path: Path) -> None:
    write_script(tmp_path, FAILS_LATE.format(first="import gpuledger", last="gpuledger.step()"))
    recorded_with(["train.py"], tmp_path)
    run = load(tmp_path / "train.ledger")
    assert (run.rank(0).manifest.steps_seen, run.rank(0).manifest.has_all_steps) == (60, True)
    checked = CliRunner().invoke(main, ["check", str(run.path), "--no-growth"])
    assert (checked.exit_code, "memory does not grow" in checked.output) == (0, True)
