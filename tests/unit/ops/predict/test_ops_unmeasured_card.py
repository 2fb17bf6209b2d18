"""A GPU that the database does not hold: predicted by datasheets and marked so, or refused with the GPUs there are."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

pytest.importorskip("sqlalchemy")

from click.testing import CliRunner
from libraries import needs

from gpuledger.cli.main import main
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.operator_database import Environment, Record, open_database
from gpuledger.ops.workloads.workload import Use, Workload

pytestmark = needs("sklearn")

Predict = Callable[..., Result]


def product(edge: int) -> OperatorKey:
    tensor = {"shape": [edge, edge], "dtype": "float32", "stride": [edge, 1]}
    return OperatorKey("aten.mm.default", (tensor, tensor), {"autocast": None, "tf32": False, "grad": False})


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("unmeasured")
    for name, card in (("h200", "NVIDIA H200"), ("here", "A processor")):
        environment = Environment(card, "580", "2.11.0", "13.0", {"cache_bytes": 50 << 20})
        with open_database(place / f"{name}.db") as database:
            for number in range(40):
                key, time_ns = product(64 + 48 * number), 2e3 * (1 + (number / 4) ** 3)
                database.put_keys([key])
                times = (time_ns, 0.99 * time_ns, 1.01 * time_ns)
                how = {"mode": "rotating"}
                database.put_environment(environment)
                database.put_records([Record(key.digest, environment.digest, how, *times, measured_ns=number + 1)])
    Workload("two", "inference", (Use(product(512), 3), Use(product(777), 1)), (), {}).write(place / "w.workload.json")
    return place


@pytest.fixture
def predict(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("XDG_CACHE_HOME", str(desk / "cache"))
    return lambda *words: CliRunner().invoke(main, ["ops", "predict", "w", *words])


def test_it_is_predicted_from_another_card_by_both_datasheets_and_marked(predict: Predict) -> None:
    there = predict("--database", "h200.db", "--gpu", "b200")
    assert there.exit_code == 0, there.output
    assert "on NVIDIA B200" in there.stdout
    assert "has no measurements: this is predicted from those of an NVIDIA H200 and" in there.stderr
    (elsewhere,), (here,) = (
        json.loads(predict("--database", "h200.db", "--gpu", card, "--json").stdout) for card in ("b200", "h200")
    )
    assert elsewhere["time_ns"] < here["time_ns"]
    assert ["has no measurements" in note for note in elsewhere["notes"]] == [True]
    assert not any("has no measurements" in note for note in here["notes"])


@pytest.mark.parametrize("command", ["predict", "sum", "list"])
def test_a_workload_file_that_is_missing_is_named(desk: Path, command: str) -> None:
    database = [] if command == "list" else ["--database", str(desk / "h200.db")]
    refused = CliRunner().invoke(main, ["ops", command, "typo.workload.json", *database])
    assert refused.exit_code == 3
    assert refused.stderr.splitlines() == [
        "gpuledger: error: typo.workload.json: No such file or directory",
        "  hint: Write a workload with: gpuledger ops capture",
    ]


def test_a_long_wait_is_said_once(predict: Predict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("gpuledger.ops.predict.choose.MANY_RECORDS", 40)
    first, second = (predict("--database", "h200.db") for _ in range(2))
    assert "fitting a model to 40 measurements (cached until the database changes)" in first.stderr
    assert "fitting a model" not in second.stderr
    assert first.stdout == second.stdout != ""


@pytest.mark.parametrize(
    ("database", "card", "words"),
    [
        ("h200", "gtx9999", "neither in the database nor in the catalogue of GPUs\n  hint: Choose NVIDIA H200, or"),
        ("here", "b200", "no GPU of the catalogue to predict it from\n  hint: Measure on a GPU of the catalogue first"),
    ],
)
def test_it_is_refused_with_the_cards_there_are(predict: Predict, database: str, card: str, words: str) -> None:
    refused = predict("--database", f"{database}.db", "--gpu", card)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert words in refused.stderr
