from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from synthetic import UNACCOUNTED_BYTES, make_run

from gpuledger.cli.main import main
from gpuledger.model.manifest import read_json
from gpuledger.model.run_directory import write_json


def ask(*words: object, columns: int | None = None) -> str:
    environ = {"COLUMNS": str(columns) if columns else None}
    result = CliRunner().invoke(main, [str(word) for word in words], env=environ)
    assert result.exit_code == 0, result.output
    return result.stdout


def names(text: str) -> list[str]:
    """Return the first words of the table's rows."""
    return [line.split()[0] for line in text.split("\n\n")[1].splitlines()[1:]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "one.ledger")


def balance(run: Path, *words: object) -> dict[str, Any]:
    return json.loads(ask("balance", run, "--json", *words))


@pytest.mark.parametrize("at", ["peak", "end", "300ms"])
def test_lines_inside_used_sum_to_it(run: Path, at: str) -> None:
    found = balance(run, "--at", at)
    inside = [line["bytes"] for line in found["lines"] if line["level"] == 1]
    assert sum(inside) == found["used_bytes"]
    assert found["unaccounted_bytes"] == UNACCOUNTED_BYTES


def test_unaccounted_memory_is_the_last_line_before_the_total(run: Path) -> None:
    lines = ask("balance", run).splitlines()
    assert lines[-2].split()[0] == "unaccounted"
    assert lines[-1].split()[0] == "total"
    assert lines[-1].endswith("equal to used")


def test_lines_are_indented_by_level(run: Path) -> None:
    rows = {line.split()[0]: len(line) - len(line.lstrip()) for line in ask("balance", run).splitlines()[3:]}
    assert rows["capacity"] == 0
    assert rows["driver"] == rows["used"] == 2
    assert rows["allocated"] == rows["unaccounted"] == rows["total"] == 4
    assert rows["weight"] == rows["rounding"] == 6


def test_every_line_has_a_source(run: Path) -> None:
    assert all(line["source"] for line in balance(run)["lines"])
    assert "NVML memory" in ask("balance", run)


def test_what_could_not_be_measured_is_a_dash_and_says_why(tmp_path: Path) -> None:
    run = make_run(tmp_path / "bare.ledger", blocks=200)
    manifest = read_json(run / "rank-0" / "manifest.json")
    del manifest["libraries"]
    write_json(run / "rank-0" / "manifest.json", manifest | {"pid": 1})  # the driver does not list it
    text = ask("balance", run)
    context = next(line for line in text.splitlines() if line.strip().startswith("context "))
    assert context.split()[1] == "–"
    assert "context, library: not measured; part of" in text
    assert {line["name"]: line["bytes"] for line in balance(run)["lines"]}["context"] is None


def test_cpu_tensors_have_no_gpu_memory(tmp_path: Path) -> None:
    run = make_run(tmp_path / "cpu.ledger", cuda=False, blocks=200)
    found = balance(run)
    assert found["used_bytes"] is None
    assert found["unaccounted_bytes"] is None
    assert found["notes"]
    text = ask("balance", run)
    assert "NVML" not in text
    assert not {"capacity", "driver", "unused", "used", "unaccounted"} & set(names(text))
    assert all(line["bytes"] is not None for line in found["lines"])


def test_several_ranks_follow_each_other(tmp_path: Path) -> None:
    run = make_run(tmp_path / "two.ledger", ranks=2, blocks=200)
    assert ask("balance", run).count("unaccounted") == 2
    assert [rank["rank"] for rank in balance(run)["ranks"]] == [0, 1]


def test_a_narrow_terminal_keeps_names_and_bytes(run: Path) -> None:
    wide, narrow = ask("balance", run), ask("balance", run, columns=40)
    assert names(narrow) == names(wide)
    sizes = [line["bytes"] for line in balance(run)["lines"]]
    assert len(names(narrow)) == len(sizes) + 2
