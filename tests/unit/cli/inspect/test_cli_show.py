from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from many_ranks import make_summaries
from rich.cells import cell_len
from synthetic import make_run

from gpuledger.analyze.memory import peaks
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak, resolve_instant
from gpuledger.analyze.ranks import rank_set
from gpuledger.cli.main import main
from gpuledger.model.accounts import CATEGORIES, ROUNDING
from gpuledger.model.manifest import read_json
from gpuledger.model.run import Rank, Run, read_run, write_table
from gpuledger.model.run_directory import write_json
from gpuledger.model.schema.tables import SCHEMA_VERSION, TABLES

AMOUNT = re.compile(r"(?:< )?([\d,]+\.\d+)  +(?:< )?\d+\.\d %")
GIB = 1 << 30


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    make_run(place / "one.ledger")
    make_run(place / "four.ledger", ranks=4, blocks=500)
    make_run(place / "cpu.ledger", cuda=False, blocks=500)
    make_run(place / "hostile.ledger", hostile_names=True, blocks=500)
    return place


def ask(*words: object, columns: int | None = None, **environ: str) -> Result:
    env = {"COLUMNS": str(columns) if columns else None, **environ}
    return CliRunner().invoke(main, [str(word) for word in words], env=env)


def document(*words: object) -> dict[str, Any]:
    result = ask(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def amounts(lines: list[str]) -> list[float]:
    """Return the figure of every line that has one and a share."""
    found = (AMOUNT.search(line) for line in lines)
    return [float(match[1].replace(",", "")) for match in found if match]


@pytest.mark.parametrize("by", ["category", "module", "phase", "scope", "tensor", "line"])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_shown_rows_sum_to_the_total(runs: Path, by: str, rows: int) -> None:
    *parts, total = amounts(ask("show", runs / "one", "--by", by, "-n", rows).stdout.splitlines())
    breakdown = break_down(rank := read_run(runs / "one.ledger").rank(), find_peak(rank))
    assert total == pytest.approx(breakdown.allocated_bytes / GIB, abs=0.005)
    assert sum(parts) == pytest.approx(total, abs=0.005 * (len(parts) + 1))
    assert 1 <= len(parts) <= rows + 1


def test_without_by_categories_come_before_modules(runs: Path) -> None:
    lines = ask("show", runs / "one").stdout.splitlines()
    titles = [line.split("  ")[0] for line in lines if line.startswith("by ")]
    assert titles == ["by category", "by module"]


def test_head_names_peak_capacity_place_and_reserved_bytes(runs: Path) -> None:
    lines = ask("show", runs / "one").stdout.splitlines()
    peak = find_peak(read_run(runs / "one.ledger").rank())
    assert re.match(r"Peak memory         \d+\.\d GiB of 140\.4 GiB \(\d+(\.\d)? %\) on cuda:0 ", lines[0])
    assert f", in step {peak.step}, {peak.phase} of {peak.module}" in lines[0]
    assert re.search(r"; \d+\.\d GiB reserved$", lines[0])
    assert "Step time           251.00 ms median, 252.00 ms p95 (5 unprofiled steps)" in lines


def test_json_accounts_sum_to_the_peak_and_are_never_cut(runs: Path) -> None:
    found = document("show", runs / "one", "-n", 1)
    assert sum(account["bytes"] for account in found["breakdown"]) == found["recorded_peak_allocated_bytes"]
    assert found["recorded_peak_allocated_bytes"] == found["allocated_bytes"]
    assert found["recorded_peak_allocated_bytes"] <= found["recorded_peak_reserved_bytes"]
    assert ROUNDING in {account["category"] for account in found["breakdown"]}
    assert len(found["breakdown"]) > 20


@pytest.mark.parametrize("by", ["category", "module", "phase", "tensor"])
@pytest.mark.parametrize("at", ["end", "350ms", "peak"])
def test_json_accounts_sum_to_the_allocated_bytes_of_the_instant(runs: Path, by: str, at: str) -> None:
    found = document("show", runs / "one", "--by", by, "--at", at)
    rank = read_run(runs / "one.ledger").rank()
    instant = resolve_instant(rank, at)
    assert found["instant"]["index"] == instant.index
    assert sum(account["bytes"] for account in found["breakdown"]) == found["allocated_bytes"]
    assert found["allocated_bytes"] == break_down(rank, instant).allocated_bytes
    assert all({"category", "module", "bytes"} <= set(account) for account in found["breakdown"])


def test_depth_folds_modules_and_keeps_the_sum(runs: Path) -> None:
    whole, folded = (document("show", runs / "one", *words) for words in ([], ["--depth", 1]))
    modules = {account["module"] for account in folded["breakdown"]} - {None}
    assert modules
    assert all("." not in module for module in modules)
    assert sum(a["bytes"] for a in folded["breakdown"]) == sum(a["bytes"] for a in whole["breakdown"])


def test_step_asks_for_the_peak_of_that_step(runs: Path) -> None:
    peaks = [document("show", runs / "one", "--step", step) for step in (1, 2, 3)]
    assert [found["instant"]["step"] for found in peaks] == [1, 2, 3]
    assert max(found["allocated_bytes"] for found in peaks) == peaks[0]["recorded_peak_allocated_bytes"]


def test_several_ranks_stand_side_by_side_and_the_imbalance_is_named(runs: Path) -> None:
    ranks = read_run(runs / "four.ledger").ranks
    peaks = {rank.number: break_down(rank, find_peak(rank)).allocated_bytes for rank in ranks}
    highest = max(peaks, key=peaks.__getitem__)
    text = ask("show", runs / "four").stdout
    assert [int(found) for found in re.findall(r"^ *(\d)  cuda:0 ", text, re.MULTILINE)] == [0, 1, 2, 3]
    ratio = peaks[highest] / (sum(peaks.values()) / 4)
    assert f"unbalanced: rank {highest} (cuda:0) has the highest peak, " in text
    assert f", {100 * (ratio - 1):.1f} % above the mean of " in text
    assert "by module" not in text
    with_table = ask("show", runs / "four", "--by", "module", "--depth", 1, "-n", 3).stdout
    assert re.match(rf"Peak memory .* of rank {highest}, in ", with_table)
    _, own_table = ask("show", runs / "four", "--by", "module", "--depth", 1, "-n", 3, "--rank", highest).stdout.split(
        "by module"
    )
    assert with_table.endswith(own_table)
    found = document("show", runs / "four")
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2, 3]
    assert found["rank"] == found["imbalance"]["rank"] == highest
    assert found["recorded_peak_allocated_bytes"] == peaks[highest] == sum(a["bytes"] for a in found["breakdown"])


@pytest.mark.parametrize("command", [("show",), ("show", "--unknown"), ("balance",), ("group",)], ids=" ".join)
def test_every_rank_of_several_is_named_and_an_only_one_is_not(command: tuple[str, ...], tmp_path: Path) -> None:
    make_run(tmp_path / "two.ledger", ranks=2, blocks=100, cuda=False)
    make_run(tmp_path / "one.ledger", blocks=100, cuda=False)
    for number in (0, 1):
        named = ask(command[0], tmp_path / "two", *command[1:], "--rank", number).stdout
        assert re.match(rf"(\S+ +)?Peak memory .* of CPU tensors of rank {number}, in ", named)
    assert "\nRanks               2 ranks, CPU tensors\n" in ask("show", tmp_path / "two").stdout
    alone = ask(command[0], tmp_path / "one", *command[1:]).stdout
    assert " of CPU tensors, in " in alone
    assert "rank" not in alone


def test_both_ranks_of_a_diff_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "two.ledger", ranks=2, blocks=100, cuda=False)
    text = ask("diff", tmp_path / "two.ledger/rank-0", tmp_path / "two.ledger/rank-1").stdout
    heads = re.findall(r"^(before|after) .* of rank (\d)$", text, re.MULTILINE)
    assert heads == [("before", "0"), ("after", "1")]


@pytest.mark.parametrize(("cuda", "device"), [(True, "cuda:0"), (False, "cpu")])
def test_the_next_command_names_rank_and_device(cuda: bool, device: str, tmp_path: Path) -> None:
    make_run(tmp_path / "two.ledger", ranks=2, blocks=100, cuda=cuda)
    offered = re.search(r"Next  gpuledger (show .* --rank \d --device (\S+))\n", ask("show", tmp_path / "two").stderr)
    assert offered is not None
    assert offered[2] == device
    assert ask(*offered[1].split()).exit_code == 0


def test_one_rank_of_several(runs: Path) -> None:
    found = document("show", runs / "four", "--rank", 2)
    assert found["rank"] == 2
    assert "ranks" not in found
    text = ask("show", runs / "four", "--rank", 2).stdout
    assert text.startswith("Peak memory ")
    assert "of pauses" in text  # the overhead is shown without a timing measurement, too


def test_a_rank_without_blocks_does_not_hide_the_others(tmp_path: Path) -> None:
    run = make_run(tmp_path / "half.ledger", ranks=2, blocks=200)
    write_table(run / "rank-0", TABLES["blocks"].arrow_schema().empty_table(), "blocks")
    assert document("show", run)["rank"] == 1


def test_an_empty_run_says_which_steps_were_not_reached(tmp_path: Path) -> None:
    run = make_run(tmp_path / "empty.ledger", blocks=200)
    write_table(run / "rank-0", TABLES["blocks"].arrow_schema().empty_table(), "blocks")
    manifest = read_json(run / "rank-0" / "manifest.json")
    write_json(run / "rank-0" / "manifest.json", manifest | {"steps_seen": 1})
    result = ask("show", run)
    assert result.exit_code == 3
    assert result.stderr.splitlines() == [
        "gpuledger: error: empty.ledger: no allocation was recorded",
        "  hint: steps 2 to 3 were not reached: the program ended after 1 step",
    ]


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("name", ["one", "hostile", "four", "cpu"])
@pytest.mark.parametrize("words", [["show"], ["show", "--by", "tensor"], ["balance"]])
def test_no_line_is_wider_than_the_terminal(runs: Path, columns: int, name: str, words: list[str]) -> None:
    result = ask(*words, runs / name, columns=columns)
    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines() if "gpuledger " not in line]
    assert max(cell_len(line) for line in lines) <= columns


@pytest.mark.parametrize("by", ["module", "tensor", "phase", "category"])
def test_hostile_names_reach_the_terminal_harmless_and_whole(runs: Path, by: str) -> None:
    text = ask("show", runs / "hostile", "--by", by, "-n", 1000).output
    assert not set(text) & {"\x00", "\x1b", "\t", "\u202e", "\u200f"}
    if by in ("module", "tensor"):
        assert r"nul\x00inside" in text
        assert r"\u202eright\u200fto left" in text
        assert "</script><img src=x onerror=alert(1)>" in text


def test_pipes_get_no_escape_sequences_and_nothing_is_cut(runs: Path) -> None:
    text = ask("show", runs / "one", "--by", "module", "-n", 100).stdout
    assert "\x1b" not in text
    assert "…" not in text


def test_categories_come_in_their_own_words(runs: Path) -> None:
    lines = ask("show", runs / "one", "--by", "category").stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("by category"))
    assert {line.split()[0] for line in lines[start + 1 :]} <= {*CATEGORIES, ROUNDING, "total"}


def test_it_ends_with_the_next_command_on_stderr(runs: Path) -> None:
    result = ask("show", runs / "one")
    assert result.stderr.splitlines()[-1].startswith("      gpuledger report ")
    assert "Next" not in result.stdout


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--by", "module", "--sort", "energy"], "energy by module"),
        (["--by", "line", "--sort", "forward"], "time by line"),
        (["--by", "module", "--sort", "bytes"], None),
        (["--by", "module"], None),
    ],
)
def test_a_quantity_that_the_run_does_not_have_is_not_what_rows_are_sorted_by(
    runs: Path, words: list[str], what: str | None
) -> None:
    lines = ask("show", runs / "one", *words).stderr.splitlines()
    notes = [line for line in lines if "so the rows are sorted by memory" in line]
    told = f"Note  --sort {words[-1]}: the run has no {what}, so the rows are sorted by memory."
    assert notes == ([] if what is None else [told])


def test_later_higher_peak_is_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "later.ledger", blocks=200)
    manifest = read_json(run / "rank-0" / "manifest.json")
    write_json(run / "rank-0" / "manifest.json", manifest | {"notes": ["compiled: one\x1b[2J region"]})
    assert r"Note  compiled: one\x1b[2J region" in ask("show", run).stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nothing"], 3, "nothing: no such run"),
        (["one", "-n", "0"], 2, "invalid value for '-n'"),
        (["one", "--at", "noon"], 2, "--at noon: not a valid time"),
        (["one", "--at", "1h"], 2, "--at 1h: after the end of the recording"),
        (["one", "--step", "7"], 2, "one.ledger: rank 0: step 7 was not recorded"),
        (["one", "--rank", "5"], 2, "one.ledger: the run has no rank 5"),
        (["one", "--rank", "x"], 2, "--rank x: not a rank"),
        (["one", "--fit", "lots"], 2, "--fit 'lots': expected a size"),
        (["one", "--device", "3"], 2, "one.ledger: rank 0: the run has no device cuda:3"),
        (["one", "--by", "colour"], 2, "invalid value for '--by'"),
        (["one", "--per-sample"], 2, "--per-sample: the batch size is unknown, no module was called with a tensor"),
        (["one", "--by", "tensor", "--per-sample"], 2, "--by tensor: cannot be combined with --per-sample"),
        (["one", "--by", "category", "--sort", "time"], 2, "--by category: cannot be combined with --sort time"),
        (["one", "--by", "kernel", "--json"], 2, "--by kernel: the run has no timing measurement"),
    ],
)
def test_wrong_calls_end_in_one_line_and_a_hint(
    runs: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(runs)
    result = ask("show", *words)
    assert result.exit_code == code
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith(f"gpuledger: error: {message}")
    assert second.startswith("  hint: ")


@pytest.mark.parametrize(
    ("step_calls", "step_samples", "calls", "is_known"),
    [
        (1, None, [[1, 20, 16, -1]], True),
        (4, None, [[1, 20, 16, -1]], False),
        (4, 64, [[1, 20, 16, -1]], True),
        (1, None, [[1, 9, 16, -1], [10, 20, 12, -1]], False),
    ],
)
def test_values_per_sample_need_steps_of_one_batch(
    tmp_path: Path, step_calls: int, step_samples: int | None, calls: list[list[int]], is_known: bool
) -> None:
    """Four batches of gradient accumulation are four times the samples of one; batches of two sizes are neither."""
    manifest = make_run(tmp_path / "one.ledger", blocks=200) / "rank-0" / "manifest.json"
    inputs = {"module_id": 0, "shape": [16, 4], "tokens": False, "step_calls": step_calls, "step_samples": step_samples}
    write_json(manifest, read_json(manifest) | {"inputs": inputs, "calls": calls})
    result = ask("show", tmp_path / "one.ledger", "--by", "module", "--per-sample")
    assert result.exit_code == (0 if is_known else 2), result.output
    assert is_known or "--per-sample: the number of samples of a step is unknown" in result.stderr


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "new.ledger", blocks=50)
    write_json(run / "manifest.json", read_json(run / "manifest.json") | {"schema_version": SCHEMA_VERSION + 1})
    result = ask("show", run)
    assert result.exit_code == 3
    assert f"schema version {SCHEMA_VERSION + 1}" in result.stderr


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "damaged.ledger", blocks=50)
    part = run / "rank-0" / "blocks" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    result = ask("show", run)
    assert result.exit_code == 3
    assert "rank-0/blocks/part-00000.parquet: damaged part" in result.stderr


def test_ranks_without_blocks_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_summaries(tmp_path / "run.ledger", 9, 6)
    compared: list[object] = []
    build = rank_set.build_rank_set

    def counted(run: Run, ranks: Sequence[Rank] | None = None) -> rank_set.RankSet | None:
        compared.append(ranks)
        return build(run, ranks)

    monkeypatch.setattr(rank_set, "build_rank_set", counted)
    shown = ask("show", path)
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("Highest peak")
    assert len(compared) == 1


def test_what_if_is_for_the_rank_with_the_highest_peak_and_says_so(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = peaks.allocator_peaks

    def higher_on_later_ranks(rank: Rank, device_idx: int) -> peaks.AllocatorPeaks:
        found = own(rank, device_idx)
        return replace(found, peak_allocated_bytes=found.peak_allocated_bytes + (0, 1, 3, 2)[rank.number] * 2**40)

    monkeypatch.setattr(peaks, "allocator_peaks", higher_on_later_ranks)
    several = ask("what-if", str(runs / "four"))
    assert several.stdout.startswith("Rank 2, cuda:0 (highest peak, of 4 in this run)\n")
    assert "--rank and --device choose another" in several.stderr
    found = json.loads(ask("what-if", str(runs / "four"), "--json").stdout)
    assert (found["rank"], found["device_idx"]) == (2, 0)
    alone = ask("what-if", str(runs / "four"), "--rank", "1")
    assert (alone.stderr, alone.stdout[:4]) == ("", "PYTO")
    on_cpu = ask("what-if", str(make_run(runs / "host.ledger", blocks=50, cuda=False)))
    assert "Note  CPU tensors have no caching allocator" in on_cpu.stderr
