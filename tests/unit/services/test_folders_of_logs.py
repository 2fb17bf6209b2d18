"""A folder of logs, as the older log profiler took it: each file is a run with its name, and bad ones are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from folders import DATA

from gpuledger.cli.main import main

TAGS = {"resnet": "forward_features:stage1_unit1_bn1", "sockeye": "in_arg:source_embed_weight"}
BYTES = {"resnet": 4_194_304, "sockeye": 8_388_608}


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of two logs as ``train.py > NAME.log 2>&1`` leaves them; the tests run beside it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, tag in TAGS.items():
        lines = ["INFO: epoch 0", f"[mem] Allocate {BYTES[name]} bytes GPU memory ({tag})."]
        lines += ["[mem] Allocate 1048576 bytes GPU memory (workspace:convolution)."] * 2
        (folder / f"{name}.log").write_text("\n".join([*lines, "[mem] finished binding.", ""]), encoding="utf-8")
    return folder


def ask(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_import_makes_a_run_of_each_file_under_its_name(logs: Path) -> None:
    result = ask("import", "tbd-log", logs, "--out", "runs")
    assert (result.exit_code, result.stdout) == (0, "runs/resnet.ledger\nruns/sockeye.ledger\n")
    compared = json.loads(ask("compare", "runs", "--json").stdout)
    assert {row["name"]: row["peak_bytes"] for row in compared} == {
        name: size + 2 * 1_048_576 for name, size in BYTES.items()
    }


@pytest.mark.parametrize("command", ["show", "group"])
def test_a_folder_is_shown_run_by_run(logs: Path, command: str) -> None:
    text = ask(command, logs)
    assert text.exit_code == 0, text.output
    assert [line.split()[0] for line in text.stdout.splitlines() if str(logs) in line] == ["resnet", "sockeye"]
    assert "imbalance" not in text.output
    document = json.loads(ask(command, logs, "--json").stdout)["runs"]
    assert list(document) == [str(logs / "resnet.log"), str(logs / "sockeye.log")]
    assert [one["allocated_bytes"] for one in document.values()] == [size + 2 * 1_048_576 for size in BYTES.values()]


def test_plot_draws_one_picture_of_all_or_one_for_each(logs: Path) -> None:
    assert ask("plot", logs, "--kind", "categories", "-o", "all.png").stdout == "all.png\n"
    each = ask("plot", logs, "--kind", "categories", "--format", "pdf", "-o", "graphs/")
    assert each.stdout == "graphs/resnet.pdf\ngraphs/sockeye.pdf\n"
    assert all(path.read_bytes().startswith(b"%PDF") for path in Path("graphs").iterdir())


def test_groups_count_their_allocations(logs: Path) -> None:
    found = json.loads(ask("group", logs / "resnet.log", "--keywords", "tbd", "--json").stdout)["category"]
    counts = {row["group"]: (row["bytes"], row["blocks"]) for row in found if row["blocks"]}
    assert counts == {"Batch Norm": (4_194_304, 1), "Workspace": (2_097_152, 2)}
    text = ask("group", logs / "resnet.log", "--keywords", "tbd").stdout
    (line,) = [line for line in text.splitlines() if line.startswith("Workspace")]
    assert line.split()[1:5] == ["2.000", "33.3", "%", "2"]


def test_a_bad_file_among_good_ones_is_named_with_its_line_and_the_status_says_so(logs: Path) -> None:
    (logs / "empty.log").touch()
    (logs / "other.log").write_text("no such line\n", encoding="utf-8")
    (logs / "cut.log").write_text("[mem] Allocate 5 bytes GPU memory (a).\n[mem] Allocate 7 by\n", encoding="utf-8")
    (logs / "notes.md").write_text("of another kind\n", encoding="utf-8")
    for words in (
        ["show", logs],
        ["group", logs],
        ["compare", logs],
        ["plot", logs, "--kind", "categories", "-o", "x.png"],
        ["import", "tbd-log", logs, "--out", "runs"],
    ):
        result = ask(*words)
        assert result.exit_code == 3, words
        said = [line for line in result.stderr.splitlines() if line.startswith("gpuledger: not read: ")]
        assert len(said) == 3, result.stderr
        assert any("empty.log: empty" in line for line in said)
        assert any("other.log: line 1" in line for line in said)
        assert any("cut.log: line 2: incomplete line" in line for line in said)
    assert [path.name for path in sorted(Path("runs").iterdir())] == ["cut.ledger", "resnet.ledger", "sockeye.ledger"]


@pytest.mark.parametrize("words", [["show"], ["plot"], ["compare"], ["import", "tbd-log"], ["import", "memory-csv"]])
def test_an_empty_folder_is_said_and_nothing_breaks(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = ask(*words, tmp_path / "empty")
    assert result.exit_code == 3
    assert "gpuledger: error: " in result.stderr
    assert str(tmp_path / "empty") in result.stderr
    assert "defect" not in result.stderr


def test_csv_files_of_the_memory_profiler_are_runs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "memory_csv", "memory_csv_data")
    rows = json.loads(ask("compare", "memory_csv_data", "--json").stdout)
    assert [row["name"] for row in rows] == ["20200405120000", "20200406080000"]


def test_a_file_extends_a_shipped_one_and_a_second_file_adds(logs: Path) -> None:
    Path("mine.toml").write_text(
        'extends = "tbd"\n[category]\nWorkspace = ["my_scratch"]\n"My layer" = ["stage1_unit1"]\n', encoding="utf-8"
    )
    document = json.loads(ask("group", logs / "resnet.log", "--keywords", "mine.toml", "--json").stdout)
    found = {row["group"]: row["bytes"] for row in document["category"]}
    assert (found["My layer"], found["Workspace"], found["Batch Norm"]) == (4_194_304, 2_097_152, 0)
    Path("more.toml").write_text('[sizes]\n"All of it" = ["re:."]\n', encoding="utf-8")
    words = ["group", logs / "resnet.log", "--keywords", "tbd", "--keywords", "more.toml", "--json"]
    added = json.loads(ask(*words).stdout)
    assert {"category", "sizes"} <= set(added)
    assert added["category"] == json.loads(ask(*words[:4], "--json").stdout)["category"]


def test_a_file_that_extends_what_is_not_there_says_what_there_is(logs: Path) -> None:
    for text in ('extends = "tdb"\n[a]\nB = ["c"]\n', "extends = 5\n[a]\nB = ['c']\n"):
        Path("k.toml").write_text(text, encoding="utf-8")
        result = ask("group", logs / "resnet.log", "--keywords", "k.toml")
        assert (result.exit_code, "k.toml" in result.stderr, "tbd" in result.stderr) == (3, True, True)


ONE_RUN = (
    ("report",),
    ("balance",),
    ("trace",),
    ("sql", "select 1"),
    ("export", "--to", "json"),
    ("check", "--against", "runs/resnet"),
    ("diff", "runs/resnet"),
)


@pytest.mark.parametrize("words", ONE_RUN, ids=lambda words: str(words[0]))
@pytest.mark.parametrize("folder", ["logs", "runs"])
def test_a_command_for_one_run_asks_for_a_name(logs: Path, folder: str, words: tuple[str, ...]) -> None:
    assert ask("import", "tbd-log", logs, "--out", "runs").exit_code == 0
    command, *more = words
    refused = ask(command, folder, *more)
    assert (refused.exit_code, refused.stdout) == (2, "")
    first = {"logs": "logs/resnet.log", "runs": "runs/resnet.ledger"}[folder]
    assert f"{folder}: a folder of 2 runs, but one run is expected" in refused.stderr
    assert f"Name one of them, for example {first}" in refused.stderr
    assert ask(command, first, *more).exit_code == 0


def test_a_folder_of_one_run_is_that_run(logs: Path) -> None:
    assert ask("import", "tbd-log", logs / "resnet.log", "--out", "runs/only").exit_code == 0
    assert ask("balance", "runs").stdout == ask("balance", "runs/only").stdout
