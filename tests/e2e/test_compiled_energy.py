"""Joules, times and recordings on request of compiled programs: they come out, and their sums are equal."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from metered import metered
from present import present
from programs import recorded_on_request
from quick import quick_gpuledger

from gpuledger.analyze.step.energy import break_down_energy, share_energy, step_energy
from gpuledger.analyze.step.times import break_down_time
from gpuledger.collect.session.on_demand import STEPS
from gpuledger.services.runs import load

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("compiler_caches")]


def test_every_joule_of_a_compiled_program_has_an_account(tmp_path: Path) -> None:
    ended = metered(tmp_path, watts=250, wobble=5, compiles=True)
    assert (ended.status, ended.stdout, ended.stderr) == (0, b"", b"")
    rank = load(tmp_path / "train.ledger").rank(0)
    assert rank.manifest.compiled_unread is None
    assert present(rank.manifest.compilation).graphs == 1
    (energy,) = present(rank.manifest.energy)
    found, step = present(break_down_energy(rank)), present(step_energy(rank))
    assert found.step_energy_j == pytest.approx(present(energy.energy_j) / (energy.last_step - energy.first_step + 1))
    assert math.fsum(one.energy_j for one in found.accounts) == pytest.approx(found.step_energy_j, rel=1e-12)
    for by in (("module",), ("module", "phase"), ("operator",), ("kernel",)):
        assert math.fsum(one.energy_j for one in share_energy(rank, step, by)) == pytest.approx(step.energy_j)
    times = present(break_down_time(rank))
    placed = {(one.module, one.phase): one for one in times.accounts}
    assert {("0", "forward"), ("2", "forward"), ("0", "backward"), ("2", "backward")} <= placed.keys()
    joules = {(one.module, one.phase) for one in found.accounts if one.energy_j > 0}
    assert {("0", "forward"), ("2", "forward"), ("0", "backward"), ("2", "backward")} <= joules


def test_a_compiled_program_is_recorded_on_request(tmp_path: Path) -> None:
    source = """
        import glob, time, torch
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 16))
        optimizer = torch.optim.Adam(model.parameters())
        model = torch.compile(model)
        end = time.monotonic() + 500
        def done():
            return any('"complete"' in open(name).read() for name in glob.glob("*-asked-1.ledger/manifest.json"))
        while time.monotonic() < end and not done():
            optimizer.zero_grad()
            model(torch.ones(256, 16)).square().sum().backward()
            optimizer.step()
            time.sleep(0.005)
        print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    """
    ended = recorded_on_request(source, tmp_path, quick_gpuledger())
    assert ended.status == 0, ended.stderr
    assert ended.stdout.split() == [b"1"]  # neither recording has compiled anything again
    first, asked = (load(tmp_path / f"train{name}.ledger").rank() for name in ("", "-asked-1"))
    for rank in (first, asked):
        assert rank.manifest.compiled_unread is None
        assert all(check.ok for check in rank.manifest.checks)
        paths = {row["module_id"]: row["path"] for row in rank.table("modules").to_pylist()}
        made = {(paths.get(row["module_id"], ""), row["phase"]) for row in rank.table("blocks").to_pylist()}
        assert {("0", "forward"), ("2", "forward"), ("2", "backward")} <= made
    assert [row["step"] for row in asked.table("steps").to_pylist() if row["recorded"]] == list(range(1, STEPS + 1))
