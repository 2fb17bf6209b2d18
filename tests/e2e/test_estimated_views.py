"""No view of an estimated run shows a time, a rate, or the name of a GPU that was there."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
import torch
from torch import nn

import gpuledger
from gpuledger.analyze.view.view import build_view
from gpuledger.cli.main import main
from gpuledger.model.schema.tables import TABLES
from gpuledger.report.html.notebook import html_of

pytestmark = pytest.mark.torch
TIME = re.compile(r"\d ?(ns|µs|ms|s|min)\b|/s\b|samples/|tokens/|MiB·s|\d ?[JW]\b")
REAL = re.compile(r"NVIDIA (?![^\n\"<]*?\(simulated\))")
IN_UNIT = re.compile(r"(_ns|_s|_w|_j|_per_s|_us)$")
OF_THE_ESTIMATE = {"started_ns", "ended_ns"}
"""When the estimate was made."""
NOT_OF_RUNS = {"run", "watch", "estimate", "gpus", "ops", "live", "import", "doctor", "calibrate", "merge"}
VIEWS = [
    ("show", "A"),
    ("show", "A", "--by", "module"),
    ("show", "A", "--by", "phase"),
    ("show", "A", "--by", "tensor"),
    ("show", "A", "--unknown"),
    ("show", "A", "--json"),
    ("group", "A"),
    ("group", "A", "--json"),
    ("what-if", "A"),
    ("balance", "A"),
    ("balance", "A", "--json"),
    ("compare", "A", "B"),
    ("compare", "A", "B", "--json"),
    ("compare", "A", "B", "--markdown"),
    ("diff", "A", "B"),
    ("diff", "A", "B", "--json"),
    ("diff", "A", "B", "--html", "diff.html"),
    ("check", "A", "--against", "B"),
    ("check", "A", "--against", "B", "--json"),
    ("budget", "A", "B", "-o", "budget.toml"),
    ("report", "A", "-o", "report.html"),
    ("plot", "A", "B", "-o", "plot.svg"),
    ("plot", "A", "--kind", "categories", "-o", "bars.svg"),
    ("plot", "A", "--kind", "two-bar", "-o", "two.svg"),
    ("trace", "A", "-o", "trace.json"),
    *(("sql", "A", f"select * from {name}", "--json") for name in (*TABLES, "allocations", "at_peak")),
    ("export", "A", "--to", "json", "-o", "tables.json"),
    ("export", "A", "--to", "csv", "--table", "steps", "-o", "-"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("estimates")
    for name, gpu, batch in (("A", "rtx-3090", 64), ("B", "t4", 32)):
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
        optimizer = torch.optim.Adam(model.parameters())

        def step(data: torch.Tensor, model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            model(data).sum().backward()
            optimizer.step()

        gpuledger.estimate(step, torch.randn(batch, 256), gpu=gpu, out=folder / f"{name}.ledger")
    return folder


def numbers_in(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of a document with the name it has there."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from numbers_in(one, name)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from numbers_in(one, key)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield key, value


def find_speed(text: str) -> list[str]:
    """Return what reads as a time, a rate, an energy, or a GPU that was there; a number of JSON by its unit."""
    found = REAL.findall(text)
    try:
        document = json.loads(text)
    except ValueError:
        return found + [match.group() for match in TIME.finditer(text)]
    return found + [f"{key}: {value}" for key, value in numbers_in(document) if is_speed(key, value)]


def is_speed(key: str, value: float) -> bool:
    return bool(IN_UNIT.search(key)) and bool(value) and key not in OF_THE_ESTIMATE


def words_of(page: str) -> str:
    """Return the words of a page without its scripts and styles, and the texts of a picture."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)
    bare = re.sub(r'data-tip="[^"]*"', "", bare)
    return unescape(re.sub(r"<[^>]*>", "\n", bare))


def test_every_command_that_shows_a_run_is_looked_at() -> None:
    context = main.make_context("gpuledger", [], resilient_parsing=True)
    assert set(main.list_commands(context)) - NOT_OF_RUNS - {"selftest", "keywords"} == {line[0] for line in VIEWS}


@pytest.mark.parametrize("line", VIEWS, ids=" ".join)
def test_a_view_of_an_estimate_has_no_time(
    runs: Path, line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(runs / f"{word}.ledger") if word in ("A", "B") else word for word in line]
    outcome = CliRunner().invoke(main, words)
    assert outcome.exit_code in ((3,) if line[0] == "trace" else (0, 5)), outcome.output
    assert find_speed(outcome.stdout) == []
    assert find_speed(outcome.stderr.replace("wrote", "")) == []
    for written in tmp_path.iterdir():
        text = written.read_text()
        if written.suffix in (".html", ".svg"):
            text = words_of(text)
        assert find_speed(text) == [], written.name


@pytest.mark.parametrize("group_by", ["operator", "kernel", "fusion"])
def test_a_view_of_times_says_that_an_estimate_has_none(runs: Path, group_by: str) -> None:
    found = CliRunner().invoke(main, ["show", str(runs / "A.ledger"), "--by", group_by])
    assert found.exit_code == 2
    assert "the run is an estimate" in found.stderr
    assert "Record the program on a GPU" in " ".join(found.stderr.split())


def test_the_figures_of_a_report_have_no_time(runs: Path, tmp_path: Path) -> None:
    from gpuledger.report.html.payload import build_payload

    payload = build_payload(build_view(gpuledger.load(runs / "A.ledger")))
    for view in payload["views"]:
        assert not view["timeline"]["has_times"]
        assert {band["label"] for band in view["bands"]} >= {"step 1", "forward", "backward", "optimizer"}
        ends = [band["end"] for band in view["bands"] if band["kind"] == "step"]
        assert ends == sorted(set(ends))
    assert find_speed(json.dumps({key: value for key, value in payload.items() if key != "definitions"})) == []


def test_python_has_no_time_of_an_estimate(runs: Path) -> None:
    run = gpuledger.load(runs / "A.ledger")
    assert gpuledger.step_times(run).median_ns is None
    assert "(simulated)" in repr(run)
    assert not run.has_measured_times
    assert not any(run.table("steps")["end_ns"].to_pylist())
    assert find_speed(words_of(html_of(run))) == []


def test_a_snapshot_of_an_estimate_has_no_durations(runs: Path, tmp_path: Path) -> None:
    place = tmp_path / "snapshot.pickle"
    assert CliRunner().invoke(main, ["export", str(runs / "A.ledger"), "--to", "torch-snapshot", "-o", str(place)])
    snapshot = pickle.loads(place.read_bytes())
    assert len({event["time_us"] for trace in snapshot["device_traces"] for event in trace}) == 1
