"""The diff: it closes, it is empty for a run with itself, it turns around, and it says what cannot be compared."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from present import present
from rich.cells import cell_len
from synthetic import HOSTILE, make_run
from synthetic_work import load_timed
from watched_runs import watch_run

from gpuledger.analyze.compare.changes import Change
from gpuledger.analyze.compare.comparable import rank_notes
from gpuledger.analyze.compare.diff import IDLE_MODULE, Diff, PlaceDiff, diff_runs
from gpuledger.analyze.compare.metrics import KINDS, headline, measure
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.step.steps import StepTimes
from gpuledger.cli.main import main
from gpuledger.errors import EmptyRunError, UsageError
from gpuledger.model.imported import rows_to_table
from gpuledger.model.manifest import RankManifest, read_json
from gpuledger.model.run import KeptRank, Run, read_run, write_table
from gpuledger.model.run_directory import write_json
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.diff_text import head_rows
from gpuledger.services.runs import diff
from gpuledger.units import format_bytes


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    make_run(place / "one.ledger", blocks=600)
    make_run(place / "other.ledger", blocks=700, seed=5)
    make_run(place / "four.ledger", ranks=4, blocks=300)
    make_run(place / "cpu.ledger", cuda=False, blocks=300)
    make_run(place / "hostile.ledger", hostile_names=True, blocks=300)
    return place


def both(runs: Path, before: str = "one", after: str = "other", **how: Any) -> Diff:
    return diff_runs(read_run(runs / f"{before}.ledger"), read_run(runs / f"{after}.ledger"), **how)


def ask(*words: object, columns: int | None = None) -> Result:
    env = {"COLUMNS": str(columns) if columns else None}
    return CliRunner().invoke(main, [str(word) for word in words], env=env)


def changed(place: Path, rank: int = 0, **keys: Any) -> Run:
    """Return the run after some keys of a rank's manifest were changed."""
    path = place / f"rank-{rank}" / "manifest.json"
    write_json(path, read_json(path) | keys)
    return read_run(place)


@pytest.mark.parametrize("word", [None, "category", "module", "phase", "tensor", "scope"])
def test_the_changes_sum_to_the_change_of_allocated_bytes(runs: Path, word: str | None) -> None:
    by = ("category", "module", word) if word in ("phase", "tensor", "scope") else ("category", "module")
    place = both(runs, by=by).main
    assert place.before.breakdown
    assert place.after.breakdown
    changes = place.changes(word)
    assert changes
    assert all(change.delta for change in changes)
    expected = place.after.breakdown.allocated_bytes - place.before.breakdown.allocated_bytes
    assert sum(change.delta or 0 for change in changes) == expected
    sizes = [abs(change.delta or 0) for change in changes]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", ["one", "four", "cpu", "hostile"])
def test_a_run_and_itself_do_not_differ(runs: Path, name: str) -> None:
    diff = both(runs, name, name)
    assert diff.is_empty
    assert repr(diff) == f"<Diff of {name!r} and {name!r}: no difference>"
    assert diff.notes == ()
    result = ask("diff", runs / name, runs / name)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "no difference"
    found = json.loads(ask("diff", runs / name, runs / name, "--json").stdout)
    assert (found["equal"], found["figures"], found["breakdown"]) == (True, [], [])


def test_turned_around_every_change_is_its_negative(runs: Path) -> None:
    there, back = both(runs).main, both(runs, "other", "one").main
    forward = {change.key: change for change in (*there.changes(), *there.figures)}
    backward = {change.key: change for change in (*back.changes(), *back.figures)}
    assert forward.keys() == backward.keys()
    for key, change in forward.items():
        assert (change.before, change.after) == (backward[key].after, backward[key].before)
        assert change.noise == backward[key].noise


def test_figures_are_those_of_the_runs(runs: Path) -> None:
    place = both(runs).main
    for change in place.figures:
        name = change.key[0]
        assert name in KINDS
        assert change.before == measure(read_run(runs / "one.ledger").rank(), 0)[name].value
        assert change.after == measure(read_run(runs / "other.ledger").rank(), 0)[name].value
    assert repr(both(runs)).startswith(f"<Diff of 'one' and 'other': {len(place.figures)} values and ")


def test_a_rank_of_nothing_has_no_figures() -> None:
    assert headline(KeptRank(0, Path(), RankManifest(schema_version=1))) == {}


def test_the_peak_metric_is_the_highest_the_allocator_counted(tmp_path: Path) -> None:
    rank = read_run(make_run(tmp_path / "a.ledger", blocks=300)).rank()
    counted = max(rank.table("counters").column("peak_allocated_bytes").to_pylist())
    recorded = break_down(rank, find_peak(rank)).allocated_bytes
    assert measure(rank, 0)["peak_allocated_bytes"].value == max(counted, recorded)


def test_noise_is_how_far_the_steps_of_a_run_are_apart(runs: Path) -> None:
    place = both(runs).main
    steps = [[breakdown.allocated_bytes for breakdown in side.step_breakdowns] for side in (place.before, place.after)]
    assert all(len(sizes) == 2 for sizes in steps)
    figure = next(change for change in place.figures if change.key == ("peak_allocated_bytes",))
    assert figure.noise == max(max(sizes) - min(sizes) for sizes in steps)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Change(("a",), "", 10, 12, 2), True),
        (Change(("a",), "", 12, 10, 2), True),
        (Change(("a",), "", 10, 13, 2), False),
        (Change(("a",), "", 10, 13, None), False),
        (Change(("a",), "", None, 13, 50), False),
    ],
)
def test_within_noise(change: Change, expected: bool) -> None:
    assert change.within_noise is expected


def test_what_cannot_be_compared_is_said(runs: Path, tmp_path: Path) -> None:
    notes = " ".join(both(runs, "one", "cpu").notes)
    assert "Different devices: NVIDIA H200 before, CPU after." in notes
    assert "Recorder differs: cuda-history before, dispatch after." in notes
    assert (
        "four has 4 ranks, one has 1 rank. Only the rank that both have is compared." in both(runs, "four", "one").notes
    )
    shutil.copytree(runs / "one.ledger", tmp_path / "new.ledger")
    write_json(tmp_path / "new.ledger" / "manifest.json", {"schema_version": 0, "status": "running"})
    new = changed(tmp_path / "new.ledger", torch_version="2.12.0", allocator_settings={"max_split_size": 20 << 20})
    said = diff_runs(read_run(runs / "one.ledger"), new).notes
    assert "new is still being written. Its values are those so far." in said
    assert "Schema versions differ: one has 1, new has 0." in said
    assert "Torch differs: 2.11.0 before, 2.12.0 after." in said
    assert "Allocator settings differ: default before, max_split_size_mb:20 after." in said


def test_reserved_memory_is_compared_on_a_gpu_only(runs: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "larger.ledger", cuda=False, blocks=500, seed=5)
    on_cpu = diff_runs(read_run(runs / "cpu.ledger"), read_run(tmp_path / "larger.ledger")).main
    on_gpu = both(runs).main
    names = [{change.key[0] for change in place.figures} for place in (on_cpu, on_gpu)]
    assert "peak_allocated_bytes" in names[0] & names[1]
    assert "peak_reserved_bytes" not in names[0]
    assert "peak_reserved_bytes" in names[1]


def test_a_figure_that_one_run_lacks_is_named_and_not_zero(runs: Path) -> None:
    found = json.loads(ask("diff", runs / "one", runs / "cpu", "--json").stdout)
    figure = next(one for one in found["figures"] if one["name"] == "peak_process_bytes")
    assert (figure["after"], figure["delta"], figure["within_noise"]) == (None, None, False)
    lines = ask("diff", runs / "one", runs / "cpu").stdout.splitlines()
    assert [line for line in lines if "peak of the process" in line and line.endswith("only before")]


def test_runs_without_a_common_device_are_compared_by_their_main_ones(runs: Path) -> None:
    place = both(runs, "one", "cpu").main
    assert (place.before.device_idx, place.after.device_idx) == (0, -1)
    with pytest.raises(UsageError, match="has no device cuda:0"):
        both(runs, "one", "cpu", device_idx=0)


def test_ranks_stand_side_by_side(runs: Path) -> None:
    assert len(both(runs, "four", "four").places) == 4
    lines = ask("diff", runs / "four", runs / "four").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:5]] == [[str(rank), "cuda:0"] for rank in range(4)]
    one = json.loads(ask("diff", runs / "four", runs / "four", "--rank", 2, "--json").stdout)
    assert one["before"]["rank"] == 2
    assert "ranks" not in one


def test_an_empty_run_is_an_error_that_names_it(runs: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"schema_version": 1})
    with pytest.raises(EmptyRunError, match=re.escape(f"{tmp_path.name}: nothing was recorded")):
        diff_runs(read_run(runs / "one.ledger"), read_run(tmp_path))
    assert ask("diff", runs / "one", tmp_path).exit_code == 3


@pytest.mark.parametrize("width", [40, 60, 120])
def test_no_line_is_wider_than_the_terminal(runs: Path, width: int) -> None:
    lines = ask("diff", runs / "one", runs / "other", columns=width).stdout.splitlines()
    assert len(lines) > 10
    assert [line for line in lines if cell_len(line) > width] == []


@pytest.mark.parametrize("name", ["b", "a much longer name of a run", "実験七"])
@pytest.mark.parametrize("width", [None, 100, 60])
def test_the_heads_stand_part_below_part(runs: Path, name: str, width: int | None) -> None:
    main = both(runs).main
    after = replace(main.after, run=name, breakdown=replace(present(main.after.breakdown), allocated_bytes=7))
    rows = head_rows(replace(main, after=after), Terminal(width))
    above, below = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert (above[0][:7], below[0][:7]) == ("before ", "after  ")
    for one, other in zip(above, below, strict=True):
        assert [place for place, _ in parts_of(one)] == [place for place, _ in parts_of(other)]
    assert [text for line in below for _, text in parts_of(line)][1] == "7 B"


def test_a_head_without_bytes_keeps_its_place(runs: Path) -> None:
    main = both(runs).main
    peak = format_bytes(present(main.before.breakdown).allocated_bytes)
    before, after = head_rows(replace(main, after=replace(main.after, breakdown=None)), Terminal())
    assert after.index(" – ") + 2 == before.index(peak) + len(peak)
    assert after.index("cuda:0") == before.index("cuda:0")
    neither = head_rows(
        PlaceDiff(replace(main.before, breakdown=None), replace(main.after, breakdown=None)), Terminal()
    )
    assert neither[0] == f"before  one     {before[before.index('cuda:0') :]}"


def parts_of(line: str) -> list[tuple[int, str]]:
    """Return the parts of a head's line, each with the cell it begins at; bytes, set right, with that they end at."""
    found = [(part[0], part.start(), part.end()) for part in re.finditer(r"\S+(?: \S+)*", line[7:])]
    edges = [end if re.fullmatch(r"[\d.]+ \w*B", text) else start for text, start, end in found]
    return [(cell_len(line[7:][:edge]), text) for edge, (text, _, _) in zip(edges, found, strict=True)]


def test_hostile_names_stay_text(runs: Path, tmp_path: Path) -> None:
    text = ask("diff", runs / "one", runs / "hostile").stdout
    assert "\x00" not in text
    assert "\u202e" not in text
    page = tmp_path / "diff.html"
    assert ask("diff", runs / "one", runs / "hostile", "--html", page).exit_code == 0
    markup = page.read_text(encoding="utf-8")
    assert "&lt;/script&gt;" in markup
    assert not [name for name in HOSTILE if name in markup and "<" in name]
    assert set(re.findall(r"<(\w+)", markup)).isdisjoint({"script", "img"})


def test_the_page_is_one_file_and_is_not_overwritten(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "diff.html"
    words = ("diff", runs / "one", runs / "other", "--html", page)
    assert ask(*words).stdout.splitlines() == [str(page)]
    assert not re.search(r"(?:src|href)=|url\(|@import", page.read_text(encoding="utf-8"))
    assert ask(*words).exit_code == 2
    assert ask(*words, "--force").exit_code == 0
    assert ask(*words, "--json", "--force").exit_code == 2


def test_cards_that_were_only_watched_are_compared_by_their_figures(tmp_path: Path) -> None:
    low = watch_run(tmp_path / "low.ledger", [100, 300, 200], energy_j=50)
    high = watch_run(tmp_path / "high.ledger", [50, 950, 50], energy_j=51.5)
    diff = diff_runs(low, high)
    peak, energy = diff.main.figures
    assert (peak.key, peak.before, peak.after) == (("peak_bytes",), 200, 900)
    assert (energy.key, energy.delta, energy.noise, energy.within_noise) == (("energy_j",), 1.5, 2.0, True)
    assert diff.main.changes() == ()
    assert diff.notes == ("low and high: The log has no times.",)
    result = ask("diff", low.path, high.path)
    assert "+700 B" in result.stdout
    assert "--by module" not in result.stderr
    assert ask("diff", low.path, low.path).stdout.splitlines()[-1] == "no difference"


def test_what_one_run_notes_of_itself_is_said_with_its_name(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "one.ledger", tmp_path / "new.ledger")
    new = changed(tmp_path / "new.ledger", notes=["Steps 2 and 3 only."], damaged=["journal/00001.npz"])
    notes = diff_runs(read_run(runs / "one.ledger"), new).notes
    assert notes == ("new: Steps 2 and 3 only.", "new: A part of the recording is damaged: journal/00001.npz")


def test_notes_of_two_runs_with_the_same_name_are_told_apart(runs: Path, tmp_path: Path) -> None:
    """As those of a training on two branches."""
    places = [tmp_path / branch / "train.ledger" for branch in ("main", "change")]
    for place in places:
        shutil.copytree(runs / "one.ledger", place)
    old = changed(places[0], notes=["Both.", "Steps 2 and 3 only."])
    new = changed(places[1], notes=["Both.", "No times."])
    assert diff_runs(old, new).notes == (
        "train: Both.",
        "train (before): Steps 2 and 3 only.",
        "train (after): No times.",
    )


def test_two_ranks_of_a_run_are_compared_by_their_directories(runs: Path) -> None:
    two, three = (runs / "four.ledger" / f"rank-{number}" for number in (2, 3))
    found = diff(two, three)
    (place,) = found.places
    assert (place.before.rank, place.after.rank) == (2, 3)
    whole = read_run(runs / "four.ledger")
    assert place.before.metrics == diff_runs(whole, whole, rank=2).places[0].before.metrics
    assert not [note for note in found.notes if "compared" in note]
    assert CliRunner().invoke(main, ["diff", str(two), str(three)]).exit_code == 0
    shown = CliRunner().invoke(main, ["show", str(two)])
    assert (shown.exit_code, "one rank of a run" in shown.stderr) == (2, True)


def test_a_note_of_some_ranks_names_them(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "four.ledger", tmp_path / "new.ledger")
    for rank in range(4):
        notes = [*(["No times."] if rank in (1, 2) else []), "All of them."]
        changed(tmp_path / "new.ledger", rank, notes=notes)
    new = read_run(tmp_path / "new.ledger")
    assert diff_runs(read_run(runs / "four.ledger"), new).notes == (
        "new: All of them.",
        "new, ranks 1 and 2: No times.",
    )


@pytest.mark.parametrize(
    ("varies", "said"), [(0.4, "40 % longer than the median"), (20.401, "21.4 times as long as the median")]
)
def test_a_busy_host_is_described_by_a_share_or_by_a_ratio(
    varies: float, said: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = StepTimes(50, 1_000_000, round(1_000_000 * (1 + varies)), "host clock")
    monkeypatch.setattr("gpuledger.analyze.compare.comparable.step_times", lambda _: slow)
    (note,) = (one for one in rank_notes(read_run(runs / "one.ledger").rank()) if "slowest" in one)
    assert said in note


def test_a_group_has_each_run_once(runs: Path, tmp_path: Path) -> None:
    one, other = runs / "one.ledger", runs / "other.ledger"
    link = tmp_path / "link.ledger"
    link.symlink_to(one)
    bare = one.with_suffix("")
    for groups in [
        (f"{one},{one}", other),
        (f"{one},{link}", other),
        (f"{one},{bare}", other),
        (f"{one},{other}", link),
    ]:
        found = ask("diff", *groups)
        assert found.exit_code == 2
        assert "twice" in found.stderr
        assert "Give each run once" in found.stderr


def with_time_pass(place: Path, times_ms: dict[int | None, int]) -> Run:
    """Return the run with one timed step: a kernel of ``times_ms`` of each module, one after another."""
    start_ns, rows = 10**15, []
    for module_id, time_ms in times_ms.items():
        row: dict[str, Any] = {
            "device_idx": 0,
            "kind": "kernel",
            "start_ns": start_ns,
            "end_ns": start_ns + time_ms * 1_000_000,
        }
        rows.append(row | {"module_id": module_id, "phase": "forward", "step": 9, "stream": 7})
        start_ns = int(row["end_ns"])
    write_table(place / "rank-0", rows_to_table("spans", rows), "spans", part=1)
    return changed(place, time_steps=[9, 9])


def test_times_of_two_time_passes_are_compared_by_module(tmp_path: Path) -> None:
    before = with_time_pass(make_run(tmp_path / "a.ledger", blocks=100), {0: 10, 1: 20, None: 5})
    after = with_time_pass(make_run(tmp_path / "b.ledger", blocks=100), {0: 10, 1: 35, None: 4})
    place = diff_runs(before, after).main
    found = {change.key[0]: change for change in place.time_changes()}
    assert {name: change.delta for name, change in found.items()} == {"attention": 15e6, "(outside modules)": -1e6}
    step = place.before.metrics["step_time_ns"]
    assert step.spread
    assert found["attention"].noise == pytest.approx(step.spread / step.value * 35e6)
    assert found["attention"].category == "forward"
    result = ask("diff", before.path, after.path)
    assert re.search(r"attention +20\.0 +35\.0 +\+15\.0 +\+75\.0 %", result.stdout)
    assert re.search(r"total change +\+14\.0", result.stdout)
    assert json.loads(ask("diff", before.path, after.path, "--json").stdout)["time_by_module"][0]["delta"] == 15e6
    assert diff_runs(after, after).is_empty


def test_a_time_pass_of_one_run_alone_is_not_compared(runs: Path, tmp_path: Path) -> None:
    timed = with_time_pass(make_run(tmp_path / "a.ledger", blocks=100), {0: 10})
    diff = diff_runs(read_run(runs / "one.ledger"), timed)
    assert diff.main.time_changes() == ()
    assert "Only a has a timing measurement, so times by module cannot be compared." in diff.notes


def with_energy(place: Path, energy_j: float) -> Run:
    """Return the run after its energy pass was given other joules."""
    passes = [one | {"energy_j": energy_j} for one in read_json(place / "rank-0" / "manifest.json")["energy"]]
    return changed(place, energy=passes)


def test_joules_of_two_energy_passes_are_compared_by_module(tmp_path: Path) -> None:
    before = load_timed(tmp_path / "a.ledger", blocks=100, modules=4, spans=12)
    load_timed(tmp_path / "b.ledger", blocks=100, modules=4, spans=12)
    after = with_energy(tmp_path / "b.ledger", 600.0)
    place = diff_runs(before, after).main
    changes = place.energy_changes()
    assert sum(change.delta or 0 for change in changes) == pytest.approx(300.0 / 3)
    assert not any(change.within_noise for change in changes if change.key != (IDLE_MODULE,))
    assert all(change.noise and change.noise > 0 for change in changes)
    found = json.loads(ask("diff", before.path, after.path, "--json").stdout)["energy_by_module"]
    assert sum(one["delta"] for one in found) == pytest.approx(100.0)
    text = ask("diff", before.path, after.path).stdout
    assert re.search(r"energy by module +before J +after J +change J", text)
    assert text.splitlines()[-1].split() == ["total", "change", "+100.0"]
    page = tmp_path / "diff.html"
    ask("diff", before.path, after.path, "--html", page)
    assert "Change of a step's energy by module" in page.read_text(encoding="utf-8")
    assert diff_runs(after, after).is_empty


def test_joules_no_larger_than_their_uncertainty_are_noise(tmp_path: Path) -> None:
    before = load_timed(tmp_path / "a.ledger", blocks=100, modules=4, spans=12)
    load_timed(tmp_path / "b.ledger", blocks=100, modules=4, spans=12)
    changes = diff_runs(before, with_energy(tmp_path / "b.ledger", 300.3)).main.energy_changes()
    assert changes
    assert all(change.within_noise for change in changes)


def test_a_run_without_joules_says_which_pass_is_missing(runs: Path, tmp_path: Path) -> None:
    metered = load_timed(tmp_path / "m.ledger", blocks=100, modules=4, spans=12)
    diff = diff_runs(metered, read_run(runs / "one.ledger"))
    assert diff.main.energy_changes() == ()
    assert "Only m has an energy measurement, so energy by module cannot be compared." in diff.notes


def test_without_unicode_and_colour_and_where_nothing_can_be_written(runs: Path, tmp_path: Path) -> None:
    env = {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "gpuledger", "diff", runs / "one.ledger", runs / "hostile.ledger"],
        env={**os.environ, **env, "COLUMNS": "40"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.isascii()
    assert b"\x1b" not in done.stdout
    (tmp_path / "file").write_text("in the way")
    result = ask("diff", runs / "one", runs / "other", "--html", tmp_path / "file" / "diff.html")
    assert result.exit_code in (1, 2)
    assert len(result.stderr.splitlines()) <= 2


def test_a_sampled_figure_without_a_known_spread_is_marked(runs: Path) -> None:
    lines = ask("diff", runs / "one", runs / "other").stdout.splitlines()
    assert next(line for line in lines if line.startswith("peak of the process")).endswith("noise unknown")
    assert not next(line for line in lines if line.startswith("peak reserved")).endswith("noise unknown")


def test_the_compiled_one_of_two_runs_is_named_with_what_it_saves(runs: Path, tmp_path: Path) -> None:
    place = tmp_path / "compiled.ledger"
    shutil.copytree(runs / "other.ledger", place)
    manifest = place / "rank-0" / "manifest.json"
    write_json(manifest, {**json.loads(manifest.read_text()), "compilation": {"graphs": 1, "seconds": 2.0}})
    eager, compiled = read_run(runs / "one.ledger"), read_run(place)
    for before, after in ((eager, compiled), (compiled, eager)):
        found = diff_runs(before, after)
        heads = head_rows(found.main, Terminal())
        assert [", compiled" in head for head in heads] == [before is compiled, after is compiled]
        sizes = [present(side.breakdown).allocated_bytes for side in (found.main.before, found.main.after)]
        word = "less" if sizes[[before, after].index(compiled)] <= min(sizes) else "more"
        assert (
            f"Only compiled is compiled. It has {format_bytes(abs(sizes[0] - sizes[1]))} {word} allocated than one."
            in found.notes
        )
    assert not any("Only" in note for note in diff_runs(compiled, compiled).notes)
