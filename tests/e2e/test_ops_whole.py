"""From a file of models to sums beside whole models, on the CPU, by the commands themselves."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuledger.cli.main import main
from gpuledger.ops.database.method import Method
from gpuledger.ops.database.operator_database import open_database

Ask = Callable[..., Result]
QUICK = ("--device", "cpu", "--precision", "90%")
MODEL = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("campaign")
    (place / "tiny_ops_model.py").write_text(MODEL)
    (place / "campaign.yml").write_text(
        "inputs: 4x64\ndatabase: own.db\nmodels:\n  - model: tiny_ops_model:net\n    mode: [inference, training]\n"
        "  - model: tiny_ops_model:nett\n"
    )
    return place


@pytest.fixture
def ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("GPULEDGER_DATABASE", raising=False)
    monkeypatch.setattr("gpuledger.ops.database.method.Method", partial(Method, warm_up_ns=100_000, block_ns=100_000))
    trust = {"campaign": ["--trust-files"]}  # its file names a model of the folder's own, and a database
    return lambda command, *words: CliRunner().invoke(main, ["ops", command, *trust.get(command, []), *words])


def test_a_campaign_goes_from_a_file_to_a_picture_and_an_unknown_model_does_not_stop_it(ask: Ask, folder: Path) -> None:
    done = ask("campaign", "--config", "campaign.yml", "-o", "out", "--json", *QUICK)
    assert done.exit_code == 3, done.output  # one of three models is not there
    assert "not captured: tiny_ops_model:nett" in done.stderr
    assert "did you mean" in done.stderr or "net" in done.stderr
    document = json.loads(done.stdout)
    assert {pair["mode"] for pair in document["pairs"]} == {"inference", "training"}
    for pair in document["pairs"]:
        assert pair["calls_frac"] == 1.0
        assert pair["sum_ns"] > 0
        assert pair["time_frac"] == pytest.approx(pair["sum_ns"] / pair["whole_ns"])
        assert pair["energy_frac"] is None
    assert json.loads((folder / "out" / "compare.json").read_text())["errors"]["time"]["pairs"] == 2
    assert (folder / "out" / "compare.png").stat().st_size > 1000
    assert len(list((folder / "out").glob("*.workload.json"))) == 2


def test_what_was_measured_is_not_measured_again_and_is_summed(ask: Ask, folder: Path) -> None:
    ask("campaign", "--config", "campaign.yml", "-o", "out", *QUICK)  # where it has run before there is nothing to do
    held = len(open_database(folder / "own.db").records())
    names = sorted(str(path) for path in (folder / "out").glob("*.workload.json"))
    measured = ask("measure", *names, "--database", "own.db", "--json", *QUICK)
    assert measured.exit_code == 0, measured.output
    assert json.loads(measured.stdout)["time"]["measured"] == 0
    assert len(open_database(folder / "own.db").records()) == held
    summed = ask("sum", *names, "--database", "own.db", "--min-coverage", "99%")
    assert summed.exit_code == 0, summed.output
    assert summed.stdout.count("100.0 % of the time") == 2


def test_a_model_by_name_is_captured_and_summed(ask: Ask, folder: Path) -> None:
    ask("campaign", "--config", "campaign.yml", "-o", "out", *QUICK)
    name, workload = "op_models:conv_net", next(str(path) for path in (folder / "out").glob("*.workload.json"))
    done = ask("sum", name, workload, "--database", "own.db", "--json")
    assert done.exit_code == 0, done.output
    trained = ask("sum", name, "--train", "--batch", "2", "--database", "own.db", "--json")
    assert trained.exit_code == 0, trained.output
    (one, known), (other,) = json.loads(done.stdout), json.loads(trained.stdout)
    assert (one["workload"], one["attributed"]["calls_frac"]) == ("conv_net-inference-32x3x224x224", 0.0)
    assert known["attributed"]["calls_frac"] == 1.0
    assert (other["workload"], other["mode"]) == ("conv_net-training-2x3x224x224", "training")
    refused = ask("sum", workload, "--train", "--database", "own.db")
    assert (refused.exit_code, "has a fixed batch size, input shape and mode" in refused.stderr) == (2, True)
    bare = ask("sum", "no_such_model", "--database", "own.db")
    assert (bare.exit_code, "torchvision" in bare.stderr) == (2, True), bare.stderr
    absent = ask("sum", "no-such-workload", "--database", "own.db")
    assert (absent.exit_code, "No such file" in absent.stderr) == (3, True), absent.stderr


def test_a_picture_that_is_there_is_refused_before_anything_is_measured(ask: Ask, folder: Path) -> None:
    (folder / "there.png").write_text("mine")
    refused = ask("compare", "nothing", "-o", "there.png", "--database", "none.db")
    assert refused.exit_code == 2
    assert "Choose another name with -o, or overwrite it with --force" in refused.stderr
    assert not (folder / "none.db").exists()


def test_the_least_is_measured_until_a_target_is_met(ask: Ask, folder: Path) -> None:
    done = ask(
        "capture",
        "--model",
        "tiny_ops_model:net",
        "--input",
        "8x64",
        "--gpu",
        "cpu",
        "-o",
        "w.workload.json",
        "--force",
    )
    assert done.exit_code == 0, done.output
    met = ask("sum", "w", "--database", "until.db", "--min-coverage", "60%", "--measure-missing", "--json", *QUICK)
    assert met.exit_code == 0, met.output
    (document,) = json.loads(met.stdout)
    assert document["attributed"]["time_frac"] >= 0.6
    records = open_database(folder / "until.db").records()
    assert 1 <= len({record.key_digest for record in records if record.method["mode"] != "host"}) < 3  # it has 3


def test_what_the_database_holds_counts_towards_a_target_and_rows_that_are_not_shown_are_said(
    ask: Ask, folder: Path
) -> None:
    words = ("--model", "op_models:conv_net", "--input", "1x3x8x8", "--gpu", "cpu", "-o", "c.workload.json", "--force")
    assert ask("capture", *words).exit_code == 0
    ask("campaign", "--config", "campaign.yml", "-o", "out", *QUICK)  # where it has run before there is nothing to do
    none = ask("sum", "c", "--database", "own.db")
    assert "nothing measured" in none.stdout
    assert ask("measure", "c", "--database", "held.db", *QUICK).exit_code == 0
    met = ask("sum", "c", "c", "--database", "held.db", "--min-coverage", "10%", "--measure-missing", "-n", "1", *QUICK)
    assert met.exit_code == 0, met.output
    assert met.stdout.count("measured: 100.0 % of the calls") == 2
    assert "\n\nconv_net" in met.stdout
    assert "more types of operators: -n or --json print them." in met.stderr
    again = ask("measure", "c", "--database", "held.db", *QUICK)
    assert "time: nothing to measure, all operators are in the database" in again.stdout


def test_a_name_gives_a_terminal_no_orders_and_columns_without_figures_are_left_out(
    ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("campaign", "--config", "campaign.yml", "-o", "out", *QUICK)
    found = json.loads(next((folder / "out").glob("*inference*.workload.json")).read_text())
    (folder / "red.workload.json").write_text(json.dumps(found | {"name": "\x1b[31mred"}))
    monkeypatch.setenv("COLUMNS", "40")
    summed = ask("sum", "red", "--database", "own.db")
    assert summed.exit_code == 0, summed.output
    assert summed.stdout.startswith("\\x1b[31mred on ")
    head = next(line for line in summed.stdout.splitlines() if line.startswith("operator"))
    assert head.split() == ["operator", "calls", "distinct", "time"]  # a processor has no energy
    listed = ask("list", "red").stdout
    assert max(map(len, listed.splitlines())) <= 40


def test_a_ray_that_is_not_installed_is_named(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = ask("campaign", "--config", "campaign.yml", "-o", "out", "--ray", "local", *QUICK)
    assert done.exit_code == 2
    assert "Ray is not installed" in done.stderr
    assert "gpuledger[cluster]" in done.stderr
    refused = ask("campaign", "--config", "no.yml", "--ray", "local")
    assert "Ray is not installed" in refused.stderr  # before anything else
