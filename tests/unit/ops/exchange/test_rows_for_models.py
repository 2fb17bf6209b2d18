"""An older A30 table serves models given by name, at an input shape of the older runs, and predicts for other GPUs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("torch")

from click.testing import CliRunner, Result
from folders import DATA

from gpuledger.cli.main import main
from gpuledger.simulate.catalogue import find_card

pytestmark = pytest.mark.torch
TABLE = DATA / "operator_energy" / "finalbench_A30.txt"
SMALL = ("resnets:resnet34", "--input", "32x3x56x56")


def ops(*words: object) -> Result:
    return CliRunner().invoke(main, ["ops", *map(str, words)])


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("a30")
    path = str(folder / "a30.db")
    ops("import", "printed-rows", TABLE, "--gpu", "NVIDIA A30", "--database", path, "-o", folder)
    return path


def test_a_model_by_name_is_summed_at_a_shape(database: str) -> None:
    (found,) = json.loads(ops("sum", *SMALL, "--database", database, "--json").stdout)
    assert round(found["busy_ns"] / 1e6, 4) == 4.5689
    assert round(1000 * found["energy_j"], 2) == 422.57


def test_a_model_by_name_is_predicted_at_a_shape(database: str) -> None:
    """Additions and pooling, which the table lacks, come to the measured 4.57 ms."""
    found = json.loads(ops("predict", *SMALL, "--database", database, "--json").stdout)
    (own,) = found if isinstance(found, list) else [found]
    assert 4.57e6 < own["time_ns"] < 5.5e6
    several = ops("predict", *SMALL, "--input", "32x3x64x64", "--database", database).stdout.splitlines()
    assert [line.split()[0] for line in several[1:]] == ["input", "32x3x56x56", "32x3x64x64"]


def test_an_a30_table_predicts_a_gpu_of_the_catalogue(database: str) -> None:
    assert find_card("a30").name == "NVIDIA A30"
    done = ops("predict", *SMALL, "--database", database, "--gpu", "a100-80gb")
    assert done.exit_code == 0, done.output
    assert "has no measurements: this is predicted from those of an NVIDIA A30 and" in done.stderr


@pytest.mark.parametrize("command", ["sum", "predict"])
def test_a_shape_beside_a_batch_or_for_a_workload_file_is_refused(command: str, database: str, tmp_path: Path) -> None:
    both = ops(command, *SMALL, "--batch", "8", "--database", database)
    assert (both.exit_code, "the shape has the batch size" in both.stderr) == (2, True)
    path = tmp_path / "small.workload.json"
    ops("capture", "--model", *SMALL, "--gpu", "a30", "-o", path)
    fixed = ops(command, path, "--input", "8x3x56x56", "--database", database)
    assert (fixed.exit_code, "fixed batch size" in fixed.stderr) == (2, True)


def test_a_folder_stands_for_its_files_and_a_bad_one_is_counted_with_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    words = ("import", "printed-rows", folder, "--gpu", "NVIDIA A30", "--database", tmp_path / "f.db", "-o", tmp_path)
    empty = ops(*words)
    assert (empty.exit_code, "no file in this folder" in empty.stderr) == (3, True)
    assert not (tmp_path / "f.db").exists()
    (folder / "good_A30.txt").write_bytes(TABLE.read_bytes())
    alone = ops("import", "printed-rows", TABLE, *words[3:]).stdout
    (folder / "dataset.pt").write_bytes(b"PK\x03\x04\x00\x00\xff\xfe" * 40)
    (folder / "notes.txt").write_text("to do: measure again\n", encoding="utf-8")
    both = ops(*words)
    assert (both.exit_code, both.stdout) == (3, alone)
    assert "not a line of these scripts" in both.stderr
    listed = "".join(path.read_text() for path in tmp_path.glob("unread-lines*.csv"))
    assert f"{folder / 'notes.txt'},1,not a line of these scripts,to do: measure again" in listed
    assert f"{folder / 'dataset.pt'},1," in listed


def test_bytes_of_another_encoding_cost_their_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "mixed_A30.txt"
    path.write_bytes(b"UserWarning: Ger\xe4t belegt\n" + TABLE.read_bytes().replace(b"\n", b"\r\n") + b"\xff\xfe\n")
    words = ("--gpu", "NVIDIA A30", "--database", tmp_path / "m.db", "-o", tmp_path)
    found, alone = ops("import", "printed-rows", path, *words), ops("import", "printed-rows", TABLE, *words)
    assert found.stdout == alone.stdout
    listed = (tmp_path / "unread-lines.csv").read_text()
    assert f"{path},1,not a line of these scripts,UserWarning: Ger\\xe4t belegt" in listed
    assert "\\xff\\xfe" in listed


def test_a_module_that_is_called_twice_counts_twice_and_additions_count(tmp_path: Path) -> None:
    """The older tool's hooks saw each module once: 17 of the 33 ReLUs, and no addition."""
    import resnets
    from torch import nn

    relus = [one for one in resnets.resnet34().modules() if isinstance(one, nn.ReLU)]
    path = tmp_path / "small.workload.json"
    done = ops("capture", "--model", *SMALL, "--gpu", "a30", "-o", path)
    assert done.exit_code == 0, done.output
    rows = json.loads(ops("list", path, "--by", "operator", "--json").stdout)
    calls = Counter[str]()
    for row in rows:
        calls[row["key"]["operator"]] += row["count"]
    assert (len(relus), calls["aten.relu_.default"], calls["aten.add_.Tensor"]) == (17, 33, 16)
