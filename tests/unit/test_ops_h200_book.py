"""The committed book of an H200: it adds up to the whole models that were measured beside it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuledger.cli.main import main
from gpuledger.operators.book import open_book
from gpuledger.operators.choose import Shelf, open_shelf
from gpuledger.operators.rebuild import find_operator
from gpuledger.operators.sum import sum_up
from gpuledger.operators.workload import read_workload

pytestmark = pytest.mark.torch
RESULTS = Path(__file__).parents[2] / "bench" / "results" / "h200"
OTHERWISE_AS_GRAPHS = ("bert", "gpt2", "llama")
"""That library's models take longer as graphs than launched eagerly: they are held to nothing here."""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    book = tmp_path_factory.mktemp("book") / "h200.book"
    merged = CliRunner().invoke(main, ["ops", "merge", str(RESULTS / "operator_book.parquet"), "--book", str(book)])
    assert merged.exit_code == 0, merged.output
    return open_shelf(open_book(str(book)))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pairs")
    with tarfile.open(RESULTS / "operator_pairs.tgz") as packed:
        packed.extractall(place, filter="data")
    return place / "operator_pairs"


@pytest.mark.parametrize(("mode", "mean_frac"), [("inference", 0.03), ("training", 0.05)])
def test_operators_add_up_to_their_models(mode: str, mean_frac: float, shelf: Shelf, pairs: Path) -> None:
    away = []
    for place in sorted((pairs / mode).glob("*.whole.json")):
        if place.name.startswith(OTHERWISE_AS_GRAPHS):
            continue
        workload = read_workload(place.with_name(place.name.replace(".whole.", ".workload.")))
        total = sum_up(workload, shelf.records, shelf.environment)
        assert total.calls_frac == 1.0
        assert not total.notes
        away.append(abs(total.busy_ns / json.loads(place.read_text())["whole"]["graph_time_ns"]["median"] - 1))
    assert len(away) == {"inference": 19, "training": 10}[mode]
    assert sum(away) / len(away) < mean_frac
    assert max(away) < 0.09


def test_every_record_is_whole(shelf: Shelf) -> None:
    assert shelf.environment.card == "NVIDIA H200"
    for record in shelf.records:
        assert record.status == "ok"
        assert record.time_low_ns <= record.time_median_ns <= record.time_high_ns
        if record.energy_median_j is not None:
            assert record.energy_low_j <= record.energy_median_j <= record.energy_high_j
            assert record.base_w is None or 110 < record.base_w < 200


def test_every_operator_is_one_that_torch_has(shelf: Shelf) -> None:
    for name in {key.operator for key in shelf.keys.values()}:
        assert find_operator(name) is not None
