"""bench/memory/sharded.py: ranks are ended together, one job's failure leaves the others, waits by CUDA events."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import BENCH

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """Import a module of bench/lib by its name; none stays behind."""
    pytest.importorskip("torch")
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH / "lib"))
        yield importlib.import_module
    for name in {"sharded_launch", "sharded_figures", "sharded_jobs", "environment"} & set(sys.modules) - before:
        del sys.modules[name]


RANK = """
import os, sys, time
from pathlib import Path
gate, rank = Path(os.environ["GATE"]), os.environ["RANK"]
(gate / f"ready.{rank}").touch()
while not (gate / "go").exists():
    time.sleep(0.01)
if sys.argv[1] == "fails" and rank == "1":
    sys.exit(3)
time.sleep(600 if sys.argv[1] != "ends" else 0)
"""


@pytest.mark.parametrize(("what", "status"), [("ends", 0), ("fails", 9), ("hangs", 9)])
def test_ranks_end_together(
    bench: Any, what: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = bench("sharded_launch")
    (tmp_path / "rank.py").write_text(RANK, encoding="utf-8")
    for name, value in {"WORLD_SIZE": "2", "GATE": tmp_path, "LOCK": tmp_path / "lock"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(sys, "argv", ["launch", sys.executable, "-S", str(tmp_path / "rank.py"), what])
    monkeypatch.setattr(launch, "GRACE_S", 0.1)
    if what == "hangs":
        monkeypatch.setattr(launch, "PATIENCE_S", 1.0)
    assert launch.main() == status


def test_a_failed_job_leaves_the_others(bench: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    given = argparse.Namespace(device="cpu", out=str(out), limit_s=1000.0, ranks=2)
    jobs = bench("sharded_jobs").Jobs(tmp_path, given, ["first", "second", "third"])

    def fails(*_: object) -> dict[str, object]:
        raise ValueError("no memory")

    jobs.run("first", fails)
    jobs.run("second", lambda *_: {"figure": 1})
    written = json.loads(out.read_text(encoding="utf-8"))
    assert written["failed"] == {"first": ["ValueError('no memory')"]}
    assert written["results"]["second"] == {"figure": 1}
    assert written["not_run"] == ["third"]
    given.limit_s = 0.0
    jobs.run("third", fails)
    assert "third" not in jobs.results
    again = bench("sharded_jobs").Jobs(tmp_path, given, ["first", "second", "third"])
    again.go_on()
    assert (again.waiting, again.failed, again.results["second"]) == (["first", "third"], {}, {"figure": 1})


def test_the_wait_of_a_rank_is_from_its_arrival_to_the_last(bench: Any) -> None:
    direct_waits_ns = bench("sharded_figures").direct_waits_ns
    printed = {
        0: {"first_ms": [9.0, 1.5], "arrivals_ms": [[4.0], [10.0, 52.0]]},
        1: {"first_ms": [1.0, 1.0], "arrivals_ms": [[4.0], [40.0, 50.0]]},
    }
    assert direct_waits_ns(printed, [2]) == {0: [30.5e6], 1: [2e6]}
    assert direct_waits_ns(printed, [1, 2]) == {0: [8e6, 30.5e6], 1: [0.0, 2e6]}
    assert direct_waits_ns(printed, []) == {0: [], 1: []}


def test_a_wait_is_compared_relative_to_that_of_events_unless_it_is_short(bench: Any) -> None:
    compared_wait = bench("sharded_figures").compared_wait
    longer = compared_wait(0, 42.0e6, 40.0e6)
    assert longer["difference_frac"] == pytest.approx(0.05)
    assert (longer["viewed_ms"], longer["direct_ms"], longer["is_within"]) == (42.0, 40.0, True)
    assert not compared_wait(0, 37.9e6, 40.0e6)["is_within"]
    short = compared_wait(1, 0.1e6, 0.9e6)
    assert short["difference_frac"] is None
    assert (short["difference_ms"], short["is_within"]) == (pytest.approx(-0.8), True)
    assert not compared_wait(1, 2.5e6, 0.9e6)["is_within"]


def test_overhead_leaves_the_first_step_out(bench: Any) -> None:
    bare = [{"step_times_s": [9.0, 1.0, 1.0, 1.0, 2.0], "peak_allocated_bytes": 5}]
    recorded = [{"step_times_s": [1.0, 1.5, 1.5, 7.0, 2.0], "peak_allocated_bytes": 5}]
    slower = [{"step_times_s": [1.0, 3.5, 3.5, 7.0, 4.0], "peak_allocated_bytes": 6}]
    found = bench("sharded_figures").overhead_figures([(bare, recorded), (bare, slower), ([], recorded)], 3)
    assert found["each_overhead"]["overhead_in_window"] == [1.5, 3.5]
    assert (found["overhead_in_window"], found["overhead_after_window"]) == (2.5, 1.5)
    assert found["window_over_after"] == 0.75
    assert found["overhead_is_within"] == [False, False]
    assert found["bare_peak_is_equal"] == [True, False]
    assert bench("sharded_figures").overhead_figures([([], [])], 3)["overhead_is_within"] == []
