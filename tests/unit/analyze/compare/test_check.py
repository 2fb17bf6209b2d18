"""Budgets and gates: what is written is what is read, the worst device counts, nothing passes unmeasured."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from synthetic import HOSTILE, make_run
from watched_runs import watch_run

from gpuledger.analyze.compare.budget import Limit, check, limits_against, parse_allowed, parse_budget
from gpuledger.analyze.compare.first_budget import toml_text, write_budget
from gpuledger.analyze.compare.metrics import measure
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.tree import module_tree
from gpuledger.cli.main import main
from gpuledger.errors import GpuLedgerError, UsageError
from gpuledger.model.manifest import read_json
from gpuledger.model.run import Run, read_run
from gpuledger.model.run_directory import write_json


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    make_run(place / "one.ledger", blocks=500)
    make_run(place / "more.ledger", blocks=900, seed=4)
    make_run(place / "four.ledger", ranks=4, blocks=300)
    make_run(place / "cpu.ledger", cuda=False, blocks=300)
    make_run(place / "hostile.ledger", hostile_names=True, blocks=300)
    return place


def read(runs: Path, name: str = "one") -> Run:
    return read_run(runs / f"{name}.ledger")


def ask(*words: object, columns: int | None = None) -> Result:
    env = {"COLUMNS": str(columns) if columns else None}
    return CliRunner().invoke(main, [str(word) for word in words], env=env)


def peak(run: Run) -> int:
    return int(max(measure(rank, 0)["peak_allocated_bytes"].value for rank in run.ranks))


def budget(place: Path, text: str) -> Path:
    path = place / "budget.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_limit_is_the_most_that_is_allowed_to_the_byte(runs: Path) -> None:
    run = read(runs)
    found = peak(run)
    for limit, ok in ((found, True), (found - 1, False), (found + 1, True)):
        gate = check(run, (Limit("peak_allocated_bytes", limit, ""),))[0]
        assert gate.ok is ok
        assert gate.over == max(found - limit, 0)


def test_a_run_keeps_to_its_own_budget_and_to_itself(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "first.toml"
    assert ask("budget", runs / "one", "-o", path, "--headroom", "0%").exit_code == 0
    assert ask("check", runs / "one", "--budget", path).exit_code == 0
    assert ask("check", runs / "one", "--against", runs / "one").exit_code == 0
    assert ask("check", runs / "more", "--budget", path).exit_code == 5


def test_the_worst_rank_counts(runs: Path) -> None:
    run = read(runs, "four")
    gate = check(run, (Limit("peak_allocated_bytes", 0, ""),))[0]
    assert gate.found
    assert gate.found.value == peak(run)
    assert gate.found.value == measure(run.rank(gate.found.rank), 0)["peak_allocated_bytes"].value


def test_a_module_is_held_to_all_below_it_and_a_category_to_its_bytes(runs: Path) -> None:
    run = read(runs)
    root = module_tree(run.rank(), find_peak(run.rank())).children[0]
    limits = parse_budget(f'[limits]\n"module:{root.path}" = 1\n"category:activation" = 1', "b")
    whole, activation = (gate.found.value for gate in check(run, limits) if gate.found)
    assert whole == root.total_bytes
    assert 0 < activation < peak(run)


def test_what_was_not_measured_does_not_pass(runs: Path, tmp_path: Path) -> None:
    text = '[limits]\nstep_energy_j = "5 J"\n"module:no.such" = "1 GiB"\n[tolerances]\nstep_energy_j = "3 %"'
    result = ask("check", runs / "one", "--budget", budget(tmp_path, text), "--json")
    assert result.exit_code == 5
    found = json.loads(result.stdout)
    assert found["over"] == ["step_energy_j", "module:no.such"]
    assert [gate["note"] for gate in found["limits"]] == ["not measured in this run", "no such module in this run"]
    assert [gate["found"] for gate in found["limits"]] == [None, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no limits"),
        ("limits = 3", "limits: expected a table"),
        ("[limit]\npeak_bytes = 1", "unknown key limit"),
        ("[limits]\npeak_alocated_bytes = 1", "unknown key peak_alocated_bytes"),
        ("[limits]\nnothing_like_it = 1", "unknown key nothing_like_it"),
        ('[limits]\n"category:activations" = 1', "unknown key category:activations"),
        ('[limits]\n"module:" = 1', "unknown key module:"),
        ('[limits]\npeak_allocated_bytes = "3 parsecs"', "unknown unit parsecs"),
        ('[limits]\npeak_allocated_bytes = "3 ms"', "unknown unit ms"),
        ("[limits]\npeak_allocated_bytes = -1", "expected 0 or more"),
        ("[limits]\npeak_allocated_bytes = nan", "expected 0 or more"),
        ("[limits]\npeak_allocated_bytes = true", "found bool"),
        ("[limits]\npeak_allocated_bytes = [1]", "found list"),
        ('[limits]\nstep_time_ns = "3 ms"', "a measured value needs a tolerance"),
        ('[limits]\nstep_time_ns = "3"\n[tolerances]\nstep_time_ns = "1 %"', "a unit is missing"),
        ('[limits]\nstep_time_ns = "3 ms"\n[tolerances]\nstep_time_ns = "1 ms"', "unknown unit ms"),
        ("[limits]\npeak_allocated_bytes = 1\n[tolerances]\nstep_time_ns = 1", "no limit has this name"),
        ("[limits", "not TOML"),
    ],
)
def test_a_budget_that_cannot_be_read_is_named(runs: Path, tmp_path: Path, text: str, message: str) -> None:
    result = ask("check", runs / "one", "--budget", budget(tmp_path, text))
    assert result.exit_code == 3
    assert f"budget.toml: {message}" in result.stderr or message in result.stderr
    assert len(result.stderr.splitlines()[0]) < 200
    assert result.stdout == ""


def test_a_near_key_is_suggested(runs: Path, tmp_path: Path) -> None:
    path = budget(tmp_path, "[limits]\npeak_alocated_bytes = 1")
    assert "Did you mean peak_allocated_bytes?" in ask("check", runs / "one", "--budget", path).stderr


@pytest.mark.parametrize("function", [lambda text: parse_budget(text, "b"), parse_allowed])
@given(text=st.text())
def test_any_text_is_read_or_an_error_of_ours(function: Callable[[str], object], text: str) -> None:
    with suppress(GpuLedgerError):
        assert function(text)


@pytest.mark.parametrize("words", [(), ("--allow", "peak_allocated_bytes=+2%")])
def test_nothing_to_check_against_is_a_wrong_call(runs: Path, words: tuple[str, ...]) -> None:
    assert ask("check", runs / "one", *words).exit_code == 2


@pytest.mark.parametrize("allow", ["peak_allocated_bytes", "peak=+2%", "peak_allocated_bytes=+2 parsecs", "=1", ","])
def test_what_is_allowed_has_to_be_readable(runs: Path, allow: str) -> None:
    result = ask("check", runs / "one", "--against", runs / "one", "--allow", allow)
    assert result.exit_code == 2
    assert result.stderr.startswith("gpuledger: error: --allow") or "unknown unit" in result.stderr


def test_every_value_that_is_allowed_is_checked(runs: Path) -> None:
    words = ("--allow", "peak_allocated_bytes=+0%", "--allow", "peak_reserved_bytes=+0%", "--json")
    found = ask("check", runs / "one", "--against", runs / "one", *words)
    assert [one["key"] for one in json.loads(found.stdout)["limits"]] == ["peak_allocated_bytes", "peak_reserved_bytes"]


def test_what_the_base_lacks_cannot_be_allowed(runs: Path) -> None:
    with pytest.raises(UsageError, match="does not have this value"):
        limits_against(read(runs), {"step_energy_j": "+3%"})


@pytest.mark.parametrize(("amount", "limit"), [("+2%", 1.02), ("50%", 1.5), ("+0%", 1.0)])
def test_a_share_is_of_the_base(runs: Path, amount: str, limit: float) -> None:
    run = read(runs)
    found = limits_against(run, {"peak_allocated_bytes": amount})[0]
    assert found.value == pytest.approx(peak(run) * limit)
    assert limits_against(run, {"peak_allocated_bytes": "+1MiB"})[0].value == peak(run) + (1 << 20)


def test_against_another_run(runs: Path) -> None:
    result = ask("check", runs / "more", "--against", runs / "one")
    assert result.exit_code == 5
    assert "1 of 1 limit not met" in result.stderr
    assert f"gpuledger diff {runs / 'one'} {runs / 'more'} --by module" in result.stderr
    grown = peak(read(runs, "more")) / peak(read(runs)) - 1
    allow = f"peak_allocated_bytes=+{grown * 100 + 0.01:.2f}%"
    assert ask("check", runs / "more", "--against", runs / "one", "--allow", allow).exit_code == 0


def test_one_run_writes_exact_figures_and_repeats_add_sampled_ones(runs: Path) -> None:
    one = tomllib.loads(write_budget([read(runs)], 0.02))
    assert set(one) == {"limits"}
    assert set(one["limits"]) == {"peak_allocated_bytes", "peak_reserved_bytes"}
    three = tomllib.loads(write_budget([read(runs), read(runs), read(runs, "more")], 0.02))
    assert {"step_time_ns", "peak_process_bytes"} <= set(three["limits"])
    assert set(three["tolerances"]) == {"step_time_ns", "peak_process_bytes"}


@pytest.mark.parametrize("name", ["one", "four", "cpu", "hostile"])
def test_a_written_budget_is_read_also_with_its_proposals(runs: Path, name: str) -> None:
    run = read(runs, name)
    text = write_budget([run] * 3, 0.0)
    proposed = "\n".join(line.removeprefix("# ") if line.startswith('# "') else line for line in text.splitlines())
    assert proposed != text
    gates = check(run, parse_budget(proposed, "b"))
    assert len(gates) >= 6
    assert [gate.limit.key for gate in gates if not gate.ok] == []


def test_files_for_ci(runs: Path, tmp_path: Path) -> None:
    path = budget(tmp_path, '[limits]\npeak_allocated_bytes = "1 MiB"\npeak_reserved_bytes = "1 TiB"')
    words = ("check", runs / "one", "--budget", path, "--junit", tmp_path / "j.xml", "--markdown", tmp_path / "m.md")
    assert ask(*words).exit_code == 5
    suite = ET.fromstring((tmp_path / "j.xml").read_text(encoding="utf-8"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    assert [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None] == [
        "peak_allocated_bytes"
    ]
    assert "1 of 2 limits not met" in (tmp_path / "m.md").read_text(encoding="utf-8")
    assert ask(*words).exit_code == 2
    assert ask(*words, "--force").exit_code == 5


def test_hostile_names_stay_text(runs: Path, tmp_path: Path) -> None:
    keys = [f"module:{path}" for path in module_paths(read(runs, "hostile"))]
    assert any(name in key for name in HOSTILE for key in keys)
    path = budget(tmp_path, "\n".join(["[limits]", *(f"{toml_text(key)} = 1" for key in keys)]))
    words = ("check", runs / "hostile", "--budget", path, "--junit", tmp_path / "j.xml")
    printed = ask(*words, "--markdown", "-").stdout
    ET.fromstring((tmp_path / "j.xml").read_text(encoding="utf-8"))
    rows = printed.splitlines()[4:]
    assert len(rows) == len(keys)
    assert re.search(r"(?<!\\)<", printed) is None
    assert not any(ord(character) < 32 and character != "\n" for character in printed)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}


def module_paths(run: Run) -> list[Any]:
    return run.rank().table("modules").column("path").to_pylist()


@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_the_terminal(runs: Path, tmp_path: Path, width: int) -> None:
    path = budget(tmp_path, f'[limits]\npeak_allocated_bytes = 1\n"module:{"x" * 50}" = 2\n"category:weight" = "1 TiB"')
    lines = ask("check", runs / "one", "--budget", path, columns=width).stdout.splitlines()
    assert len(lines) == 4
    assert [line for line in lines if cell_len(line) > width] == []


def test_a_budget_is_not_overwritten(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    assert ask("budget", runs / "one", "-o", path).stdout == f"{path}\n"
    assert ask("budget", runs / "one", "-o", path).exit_code == 2
    assert ask("budget", runs / "one", "-o", path, "--force").exit_code == 0


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_budget_that_cannot_be_opened(runs: Path, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "b.toml"
    if content is not None:
        path.write_bytes(content)
    result = ask("check", runs / "one", "--budget", path)
    assert result.exit_code == 3
    assert str(path) in result.stderr


def test_a_card_that_was_only_watched_is_held_by_a_tolerance(tmp_path: Path) -> None:
    run = watch_run(tmp_path / "watched.ledger", [100, 1100, 100])
    text = '[limits]\npeak_bytes = "990 B"\n[tolerances]\npeak_bytes = "{} %"'
    for share, code in ((1, 5), (2, 0)):
        result = ask("check", run.path, "--budget", budget(tmp_path, text.format(share)))
        assert result.exit_code == code
        assert "Note  The log has no times." in result.stderr
    assert ask("budget", run.path, "-o", tmp_path / "b.toml").exit_code == 2
    assert ask("budget", *[run.path] * 3, "-o", tmp_path / "b.toml").exit_code == 0
    assert ask("check", run.path, "--budget", tmp_path / "b.toml").exit_code == 0


@pytest.mark.parametrize(
    ("status", "said"), [("running", "is still being written"), ("cut off", "is incomplete: its recording was cut off")]
)
def test_a_run_that_is_not_whole_is_said(runs: Path, tmp_path: Path, status: str, said: str) -> None:
    shutil.copytree(runs / "one.ledger", tmp_path / "part.ledger")
    place = tmp_path / "part.ledger" / "manifest.json"
    write_json(place, read_json(place) | {"status": status})
    result = ask("check", place.parent, "--against", runs / "one", "--json")
    assert result.exit_code == 0
    assert any(note.startswith(f"part {said}") for note in json.loads(result.stdout)["notes"])


@pytest.mark.parametrize(
    ("ended", "said"), [({"exit_status": 1}, "exit status 1"), ({"exit_status": 143, "signal": 15}, "SIGTERM")]
)
def test_a_program_that_failed_is_said(runs: Path, tmp_path: Path, ended: dict[str, int], said: str) -> None:
    shutil.copytree(runs / "one.ledger", tmp_path / "failed.ledger")
    place = tmp_path / "failed.ledger" / "manifest.json"
    write_json(place, read_json(place) | ended)
    note = f"failed ended with {said}. Its values are those until then."
    against = ("--against", runs / "one")
    assert note in json.loads(ask("check", place.parent, *against, "--json").stdout)["notes"]
    assert note in json.loads(ask("diff", runs / "one", place.parent, "--json").stdout)["notes"]
    assert note not in json.loads(ask("check", runs / "one", *against, "--json").stdout)["notes"]


@pytest.mark.parametrize("words", [("--junit",), ("--markdown",)])
def test_a_file_that_cannot_be_written_is_named(runs: Path, words: tuple[str, ...]) -> None:
    result = ask("check", runs / "one", "--against", runs / "one", *words, "/proc/gpuledger.out")
    assert result.exit_code == 1
    assert "/proc/" in result.stderr
    assert len(result.stderr.splitlines()) == 1
