"""The runs of several hosts become one run; the same rank twice is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from many_ranks import make_summaries
from synthetic import load_run, make_run

from gpuledger.analyze.ranks.rank_set import build_rank_set
from gpuledger.cli.main import main
from gpuledger.errors import InputError, UsageError
from gpuledger.services.merges.merging import merge_runs


def test_ranks_of_two_hosts_stand_together(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a.ledger", blocks=50, ranks=2)
    second = make_summaries(tmp_path / "b.ledger", 2, 6)
    for number in (1, 0):
        (second / f"rank-{number}").rename(second / f"rank-{number + 2}")
    merged = merge_runs([str(first), str(second)], str(tmp_path / "all"))
    assert [rank.number for rank in merged.ranks] == [0, 1, 2, 3]
    assert merged.name == "all"
    ranks = build_rank_set(merged)
    assert ranks is not None
    assert [line.rank for line in ranks.lines] == [0, 1, 2, 3]
    assert "The merged runs were recorded with different commands." in merged.manifest.notes


def number_in_job(rank_directory: Path, rank: int, size: int) -> None:
    path = rank_directory / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(manifest | {"world": {"size": size, "rank": rank}}), encoding="utf-8")


def test_ranks_have_their_numbers_in_the_job(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"{name}.ledger", blocks=20, ranks=2) for name in "ab"]
    for run, first in zip(runs, (2, 0), strict=True):
        for number in (0, 1):
            number_in_job(run / f"rank-{number}", first + 1 - number, 4)
    merged = merge_runs([str(run) for run in runs], str(tmp_path / "all"))
    assert [rank.number for rank in merged.ranks] == [0, 1, 2, 3]
    assert [rank.manifest.world and rank.manifest.world.rank for rank in merged.ranks] == [0, 1, 2, 3]


def test_a_number_that_two_ranks_of_a_run_have_is_not_used(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a.ledger", blocks=20, ranks=2)
    for number in (0, 1):
        number_in_job(run / f"rank-{number}", 7, 8)
    assert [rank.number for rank in merge_runs([str(run)], str(tmp_path / "all")).ranks] == [0, 1]


def test_the_same_rank_twice_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    runs = [str(load_run(tmp_path / f"{name}.ledger", blocks=20).path) for name in "ab"]
    with pytest.raises(UsageError, match="rank 0: is in") as refused:
        merge_runs(runs, str(tmp_path / "all"))
    assert refused.value.hint == "Leave one of the two runs out"
    assert not (tmp_path / "all.ledger").exists()


def test_runs_of_different_versions_are_named_and_merged(tmp_path: Path) -> None:
    for number, version in enumerate(("0.1.0", "0.2.0")):
        run = make_summaries(tmp_path / f"{number}.ledger", 1, 2)
        (run / "rank-0").rename(run / f"rank-{number}")
        path = run / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"gpuledger_version": version}))
    merged = merge_runs([str(tmp_path / "0.ledger"), str(tmp_path / "1.ledger")], str(tmp_path / "all"))
    assert merged.manifest.notes == (
        "The merged runs were recorded with different versions of gpuledger: 0.1.0, 0.2.0.",
    )
    ranks = build_rank_set(merged)
    assert ranks is not None
    assert len(ranks.lines) == 2


def test_the_status_is_the_first_that_is_not_zero_and_each_rank_has_its_own(tmp_path: Path) -> None:
    ends = [(0, None), (137, 9), (1, None)]
    for number, (exit_status, signal) in enumerate(ends):
        run = make_summaries(tmp_path / f"{number}.ledger", 1, 2)
        (run / "rank-0").rename(run / f"rank-{number}")
        path = run / "manifest.json"
        told = {"exit_status": exit_status, "signal": signal, "ended_ns": 1_000 - number}
        path.write_text(json.dumps(json.loads(path.read_text()) | told))
    merged = merge_runs([str(tmp_path / f"{number}.ledger") for number in range(3)], str(tmp_path / "all"))
    assert (merged.manifest.exit_status, merged.manifest.signal) == (137, 9)
    assert [(rank.manifest.exit_status, rank.manifest.signal) for rank in merged.ranks] == ends
    assert [rank.manifest.ended_ns for rank in merged.ranks] == [1_000, 999, 998]


def test_a_damaged_rank_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "two.ledger", blocks=50, ranks=3)
    for number in range(3):
        number_in_job(run / f"rank-{number}", number, 3)
    (run / "rank-1" / "manifest.json").write_text('{"schema', encoding="utf-8")
    shown = CliRunner().invoke(main, ["show", str(run), "--rank", "0"])
    assert shown.exit_code == 0, shown.output
    assert "Rank 1 cannot be read: " in shown.output
    assert "rank-1/manifest.json: not JSON" in " ".join(shown.output.split())
    together = CliRunner().invoke(main, ["show", str(run), "--json"])
    problems = json.loads(together.stdout)["problems"]
    assert [text.partition(":")[0] for text in problems] == ["Rank 1 cannot be read"]
    alone = CliRunner().invoke(main, ["show", str(run), "--rank", "1"])
    assert alone.exit_code == 3
    assert "not JSON" in alone.output
    merged = merge_runs([str(run)], str(tmp_path / "all"))
    assert [rank.number for rank in merged.ranks] == [0, 2]
    assert merged.manifest.notes[0].startswith("Rank 1 was left out: ")
    for number in (0, 2):
        (run / f"rank-{number}" / "manifest.json").write_text("[]", encoding="utf-8")
    with pytest.raises(InputError):
        merge_runs([str(run)], str(tmp_path / "none"))


def test_a_run_that_is_still_written_is_called_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one.ledger", blocks=50, ranks=1)
    path = run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "running"}))
    assert "The run is still being written" in CliRunner().invoke(main, ["show", str(run)]).output
    shutil.rmtree(run / "rank-0")
    empty = CliRunner().invoke(main, ["show", str(run)]).output
    assert "nothing is recorded yet" in empty
    assert "used PyTorch" not in empty


def test_a_rank_without_a_step_or_a_block_leaves_the_others_shown(tmp_path: Path) -> None:
    run = make_summaries(tmp_path / "a.ledger", 4, 6)
    for name in ("rank_summary", "breakdown"):
        shutil.rmtree(run / "rank-2" / name)
    for number in range(4):
        number_in_job(run / f"rank-{number}", number, 5)
    path = run / "rank-2" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"steps_seen": 0}))
    ranks = build_rank_set(merge_runs([str(run)], str(tmp_path / "all")))
    assert ranks is not None
    assert [line.rank for line in ranks.lines] == [0, 1, 3]
    assert ranks.problems[0].startswith("Rank 4 of 5 has no recording.")
    assert ranks.problems[1:] == ("Rank 2 took no step, other ranks up to 10.",)


def test_a_run_that_exists_is_not_replaced(tmp_path: Path) -> None:
    run = str(load_run(tmp_path / "a.ledger", blocks=20).path)
    with pytest.raises(UsageError, match="exists"):
        merge_runs([run], run)
