"""A memory pass that is asked for while a program runs: a run of its own, and nothing left in the program."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from programs import recorded_on_request
from quick import quick_gpuledger
from torch import nn
from torch.optim import optimizer as optimizers

from gpuledger import load
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.on_demand import STEPS, Listener
from gpuledger.live.view import LiveView
from gpuledger.live.watched_run import WatchedRun
from gpuledger.model.manifest import read_json
from gpuledger.model.run_directory import ASKED, write_json
from gpuledger.model.run_writer import RunWriter

pytestmark = pytest.mark.torch


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "long.ledger"
    place.mkdir()
    write_json(place / "manifest.json", {"schema_version": 1, "status": "running"})
    return place


def hooks() -> tuple[int, int]:
    return len(optimizers._global_optimizer_pre_hooks), len(optimizers._global_optimizer_post_hooks)


def train(steps: int) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 8)).square().sum().backward()
        optimizer.step()


def test_what_is_asked_for_is_a_run_of_its_own(place: Path) -> None:
    before = hooks(), nn.Module.__call__.__code__
    listener = Listener(RecordSettings(place, devices="cpu"))
    watched = WatchedRun(place)
    try:
        train(3)
        assert not list(place.parent.glob("*-asked-*"))
        assert "requested" in watched.ask()
        train(20)
        now = watched.read()
        assert now.breakdown is not None
        assert {one.category for one in now.breakdown.accounts} >= {"weight", "gradient"}
        assert watched.ask()
        train(20)
    finally:
        listener.stop()
        watched.close()
    assert (hooks(), nn.Module.__call__.__code__) == before
    runs = [load(place.parent / f"long-asked-{number}.ledger") for number in (1, 2)]
    for run in runs:
        assert run.manifest.status == "complete"
        recorded = [row["step"] for row in run.rank().table("steps").to_pylist() if row["recorded"]]
        assert recorded == list(range(1, STEPS + 1))
        assert all(check.ok for check in run.rank().manifest.checks)


def test_while_the_first_recording_is_under_way_the_request_waits(place: Path) -> None:
    from gpuledger import record

    listener = Listener(RecordSettings(place, devices="cpu"))
    try:
        with record("first", out=place.parent / "first.ledger"):
            (place / ASKED).touch()
            train(2)
            assert (place / ASKED).exists()
        train(4)
        assert not (place / ASKED).exists()
    finally:
        listener.stop()


def test_a_run_that_does_not_listen_or_has_ended_says_so(place: Path) -> None:
    view = LiveView(None, WatchedRun(place))
    assert view.press("d")
    assert "gpuledger run --live" in view.said
    assert not (place / ASKED).exists()
    write_json(place / "manifest.json", {"schema_version": 1, "status": "complete"})
    assert view.press("d")
    assert view.said == "the run has ended"
    assert view.press("b")
    assert view.said == ""


def test_an_error_of_ours_stays_ours(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr(RunWriter, "open", broken)
    listener = Listener(RecordSettings(place, devices="cpu"))
    (place / ASKED).touch()
    try:
        train(3)
    finally:
        listener.stop()


def test_run_live_says_lines_and_hears(tmp_path: Path) -> None:
    source = """
        import glob, time, torch
        model = torch.nn.Linear(16, 16)
        optimizer = torch.optim.Adam(model.parameters())
        end = time.monotonic() + 500
        def done():
            return any('"complete"' in open(name).read() for name in glob.glob("*-asked-1.ledger/manifest.json"))
        while time.monotonic() < end and not done():
            optimizer.zero_grad()
            model(torch.ones(4, 16)).sum().backward()
            optimizer.step()
            time.sleep(0.005)
    """
    ended = recorded_on_request(source, tmp_path, quick_gpuledger())
    assert ended.status == 0, ended.stderr
    assert load(tmp_path / "train-asked-1.ledger").rank().table("blocks").num_rows
    assert read_json(tmp_path / "train.ledger" / "manifest.json")["status"] == "complete"
