"""Events of some ranks, summaries of all: the merged view stays the same."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from synthetic import make_run

from gpuledger.analyze.memory.empty import why_empty
from gpuledger.analyze.memory.lifetimes import device_indices
from gpuledger.analyze.ranks.rank_set import RankSet, build_rank_set
from gpuledger.analyze.view.options import ViewOptions
from gpuledger.analyze.view.view import build_view
from gpuledger.cli.main import main
from gpuledger.collect.launch.settings import parse_ranks
from gpuledger.errors import UsageError
from gpuledger.model.run import Run
from gpuledger.services.keeping_events import keep_events
from gpuledger.services.runs import load, post_missing


@pytest.fixture
def run(tmp_path: Path) -> Run:
    place = make_run(tmp_path / "a.ledger", ranks=1, blocks=60)
    for number in range(1, 5):
        shutil.copytree(place / "rank-0", place / f"rank-{number}")
    _set(place / "rank-3" / "manifest.json", status="cut off")
    return load(place)


def _set(manifest: Path, **facts: object) -> None:
    manifest.write_text(json.dumps(json.loads(manifest.read_text(encoding="utf-8")) | facts), encoding="utf-8")


def summarized(run: Run) -> RankSet:
    from gpuledger.analyze.ranks.summaries import write_summary

    for rank in run.ranks:
        write_summary(rank)
    found = build_rank_set(run)
    assert found is not None
    return found


def with_events(run: Run) -> set[int]:
    return {rank.number for rank in run.ranks if device_indices(rank)}


@pytest.mark.parametrize("which", ["all", "0-4"])
def test_all_ranks_are_kept(which: str, run: Run) -> None:
    summarized(run)
    assert with_events(keep_events(run, which)) == {0, 1, 2, 3, 4}


def test_a_list_of_ranks(run: Run) -> None:
    before = summarized(run)
    kept = keep_events(run, "0,2-3,99")
    assert with_events(kept) == {0, 2, 3}
    after = build_rank_set(kept)
    assert after is not None
    assert (after.lines, after.categories, after.matrix) == (before.lines, before.categories, before.matrix)
    post_missing(run.path)
    assert with_events(load(run.path)) == {0, 2, 3}


def test_show_has_the_merged_view_of_ranks_without_events(run: Run) -> None:
    summarized(run)
    keep_events(run, "0")
    shown = CliRunner().invoke(main, ["show", str(run.path)])
    assert shown.output.splitlines()[0].startswith("Missing or failed")
    assert "5 ranks on" in shown.output
    assert why_empty([load(run.path).rank(1)]) == "only its summary was kept (--ranks); gpuledger show RUN has it"


def test_a_sample_has_the_highest_rank_and_ranks_that_failed(run: Run) -> None:
    before = summarized(run)
    kept = with_events(keep_events(run, "sample"))
    assert kept == {before.highest.rank, 3}
    shown = build_view(load(run.path), ViewOptions())
    assert {one.rank.number for one in shown.devices} <= kept


def test_events_without_a_summary_are_not_removed(run: Run) -> None:
    assert with_events(keep_events(run, "0")) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("text", ["", "some", "1,", "-1", "3-1", "1-", "0-99999999", "½"])
def test_what_is_no_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--ranks {text}")) as refused:
        parse_ranks(text)
    assert refused.value.hint == "Use all, sample, or numbers such as 0,8-11"
