"""One command in several variants: what runs, in which order, from which GPU, and what is left when one fails."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.compare.compare import compare
from gpuledger.analyze.samples.series import build_series
from gpuledger.cli.record.watch import tell_variants
from gpuledger.errors import UsageError
from gpuledger.model.imported import ImportedRank, ImportedRun, rows_to_table, write_imported
from gpuledger.model.run import read_run
from gpuledger.model.run_writer import find_run_id
from gpuledger.report.text.compare_table import comparison_csv, comparison_markdown
from gpuledger.services.variants import (
    CardSample,
    Idle,
    Tools,
    Variant,
    choose_folder,
    make_variants,
    parse_variants,
    parse_vary,
    run_variants,
)

MIB = 1 << 20
S = 10**9


class World:
    """Cards, a clock and commands that end as they are told; every call is kept."""

    def __init__(self, statuses: dict[str, int] | None = None, busy_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.ran: list[tuple[float, tuple[str, ...]]] = []
        self.said: list[str] = []
        self.statuses = statuses or {}
        self._busy_s = busy_s
        self._busy_until_s = 0.0

    def tools(self) -> Tools:
        return Tools(self.watch, self.read_cards, self.said.append, lambda: self.now_s, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def read_cards(self) -> Sequence[CardSample]:
        busy = self.now_s < self._busy_until_s
        return [CardSample(0, 700 * MIB if busy else 0, 300.0 if busy else 80.0), CardSample(1, 5, None)]

    def watch(self, command: tuple[str, ...], place: Path) -> int:
        self.ran.append((self.now_s, command))
        rows = [{"t_ns": t * S, "device_idx": 0, "used_bytes": len(self.ran) * MIB * (t == 1)} for t in range(3)]
        status = self.statuses.get(command[-1], 0)
        if status == 127:
            return status
        facts = {"started_ns": 1, "ended_ns": 2 * S, "exit_status": abs(status)}
        rank = ImportedRank(0, {"samples": rows_to_table("samples", rows)})
        write_imported(ImportedRun(place.stem, "watch", (), (rank,), facts=facts), place, replace=True)
        self._busy_until_s = self.now_s + self._busy_s
        return status


def run_and_tell(variants: Sequence[Variant], folder: Path, tools: Tools) -> int:
    """Do what `watch --variants` does."""
    result = run_variants(variants, folder, tools)
    tell_variants(result, tools.say)
    return result.exit_code


def plain(*names: str) -> list[Variant]:
    return [Variant(name, ("prog", name.upper())) for name in names]


def test_variants_are_names_with_values() -> None:
    assert parse_variants("direct=DIRECT,fft=FFT") == [("direct", "DIRECT"), ("fft", "FFT")]
    assert parse_variants("a,b=x=y,c=") == [("a", "a"), ("b", "x=y"), ("c", "")]
    assert parse_variants(None) == []


@pytest.mark.parametrize("text", ["", "a,,b", "a=1,a=2", "../x=1", "a/b", "=x", "a b=1", ".hidden"])
def test_a_name_that_cannot_name_a_run_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--variants"):
        parse_variants(text)


@pytest.mark.parametrize("text", ["batch", "batch=", "=1", "batch=1,,2", "batch=1,1", "variant=1", "a-b=1"])
def test_a_bad_vary_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--vary"):
        parse_vary([text])


def test_one_axis_twice_is_refused() -> None:
    with pytest.raises(UsageError):
        parse_vary(["batch=1", "batch=2"])


def test_every_combination_runs_round_after_round() -> None:
    command = ["./mem_prof", "{variant}", "--batch={batch}", "{other}", "{}"]
    made = make_variants(command, [("d", "DIRECT"), ("f", "FFT")], {"batch": ["1", "8"]}, 2)
    assert [variant.name for variant in made] == [
        f"{name}-batch{batch}-r{turn}" for turn in (1, 2) for name in "df" for batch in (1, 8)
    ]
    assert made[0].command == ("./mem_prof", "DIRECT", "--batch=1", "{other}", "{}")
    assert made[-1].command == ("./mem_prof", "FFT", "--batch=8", "{other}", "{}")


@given(st.text(alphabet="{}variant x", max_size=20))
def test_a_value_is_put_in_as_it_stands(value: str) -> None:
    (made,) = make_variants(["a{variant}b"], [("n", value)], {}, 1)
    assert made.command == (f"a{value}b",)


def test_what_is_varied_must_be_in_the_command() -> None:
    with pytest.raises(UsageError, match=r"\{batch\} is not in the command"):
        make_variants(["prog", "{variant}"], [("a", "A")], {"batch": ["1"]}, 1)


def test_options_become_runs(tmp_path: Path) -> None:
    world, out = World(), tmp_path / "out"
    options = (["prog", "{n}", "{variant}"], "a=A,b", ["n=1,2"], 1)
    variants = make_variants(options[0], parse_variants(options[1]), parse_vary(options[2]), options[3])
    assert run_and_tell(variants, choose_folder(str(out), variants, force=False), world.tools()) == 0
    assert {path.name for path in out.glob("*.ledger")} == {f"{name}-n{n}.ledger" for name in "ab" for n in (1, 2)}
    assert world.ran[0][1] == ("prog", "1", "A")
    with pytest.raises(UsageError, match="already exists"):
        choose_folder(str(out), variants, force=False)
    assert len(world.ran) == 4


def test_runs_table_and_pictures_are_left(tmp_path: Path) -> None:
    world = World()
    assert run_and_tell(plain("direct", "fft"), tmp_path / "out", world.tools()) == 0
    assert [command for _, command in world.ran] == [("prog", "DIRECT"), ("prog", "FFT")]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"direct.ledger", "fft.ledger", "plots"}
    plots = tmp_path / "out" / "plots"
    assert {path.name for path in plots.iterdir()} == {"compared.csv", "compared.md", "memory.png"}
    with (plots / "compared.csv").open() as file:
        assert [row["peak_bytes"] for row in csv.DictReader(file)] == [str(MIB), str(2 * MIB)]
    assert any("×2.00" in line for line in world.said)


def test_a_variant_that_fails_is_kept_and_marked_and_the_others_go_on(tmp_path: Path) -> None:
    world = World({"FFT": 3, "GONE": 127})
    assert run_and_tell(plain("direct", "fft", "gone", "cudnn"), tmp_path, world.tools()) == 1
    assert len(world.ran) == 4
    assert read_run(tmp_path / "fft.ledger").manifest.exit_status == 3
    text = (tmp_path / "plots" / "compared.md").read_text()
    assert "fft (exit status 3)" in text
    assert "cudnn" in text
    assert any("gone: no run was written" in line for line in world.said)
    assert any("fft: exit status 3" in line for line in world.said)


def test_a_signal_is_told_as_one(tmp_path: Path) -> None:
    world = World({"FFT": -9})
    assert run_and_tell(plain("fft", "cudnn"), tmp_path, world.tools()) == 1
    assert any("fft: ended by signal 9" in line for line in world.said)


def test_ctrl_c_ends_the_series_and_compares_what_there_is(tmp_path: Path) -> None:
    world = World({"FFT": -2})
    assert run_and_tell(plain("direct", "fft", "cudnn"), tmp_path, world.tools()) == 130
    assert len(world.ran) == 2
    assert any("1 of 3 variants were not run" in line for line in world.said)
    assert (tmp_path / "plots" / "compared.md").is_file()


def test_nothing_that_ran_leaves_nothing_to_compare(tmp_path: Path) -> None:
    world = World({"A": 127})
    assert run_and_tell(plain("a"), tmp_path, world.tools()) == 1
    assert any("nothing to compare" in line for line in world.said)


def test_each_variant_waits_for_the_idle_card(tmp_path: Path) -> None:
    world = World(busy_s=7.0)
    run_and_tell(plain("a", "b", "c"), tmp_path, world.tools())
    starts = [start for start, _ in world.ran]
    assert [later - earlier for earlier, later in pairwise(starts)] == pytest.approx([7, 7], abs=0.3)
    assert not any("not idle" in line for line in world.said)


def test_a_card_that_does_not_come_back_is_told_and_noted_in_the_run(tmp_path: Path) -> None:
    world = World(busy_s=1e9)
    assert run_and_tell(plain("a", "b"), tmp_path, world.tools()) == 0
    assert world.ran[1][0] - world.ran[0][0] == pytest.approx(Idle.LONGEST_S, abs=0.3)
    (told,) = [line for line in world.said if "not idle" in line]
    assert "b: started although the GPU was not idle after 60 s: GPU 0 uses 700.0 MiB more memory" in told
    assert "not idle" in read_run(tmp_path / "b.ledger").manifest.notes[0]
    assert read_run(tmp_path / "a.ledger").manifest.notes == ()


@pytest.mark.parametrize(
    ("now", "idle"),
    [
        (CardSample(3, 100 * MIB, 80.0), True),
        (CardSample(3, 115 * MIB, 90.0), True),
        (CardSample(3, 117 * MIB, 80.0), False),
        (CardSample(3, 100 * MIB, 120.0), False),
        (CardSample(3, 100 * MIB, None), True),
        (CardSample(3, 10 * MIB, 20.0), True),
        (CardSample(3, None, 80.0), False),
    ],
)
def test_idle_is_the_baseline_within_a_little(now: CardSample, idle: bool) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    tools = Tools(lambda _command, _place: 0, lambda: [now], print, lambda: clock[0], sleep)
    assert (Idle((CardSample(3, 100 * MIB, 80.0),)).wait(tools) == "") is idle


def test_existing_runs_are_refused_before_anything_runs_and_force_keeps_them_until_then(tmp_path: Path) -> None:
    variants = plain("a", "b")
    run_and_tell(variants, tmp_path / "out", World().tools())
    for taken in ([variants[0]], [Variant("c", ("prog",))]):
        with pytest.raises(UsageError, match="already exists"):
            choose_folder(str(tmp_path / "out"), taken, force=False)
    assert choose_folder(str(tmp_path / "out"), variants, force=True) == tmp_path / "out"
    assert (tmp_path / "out" / "a.ledger").exists()
    before = find_run_id(tmp_path / "out" / "a.ledger")
    assert run_and_tell(variants, tmp_path / "out", World().tools()) == 0
    assert find_run_id(tmp_path / "out" / "a.ledger") != before


def test_an_old_run_is_kept_and_not_compared_where_its_command_does_not_start(tmp_path: Path) -> None:
    variants = [Variant("a", ("prog", "A")), Variant("b", ("prog", "B"))]
    run_and_tell(variants, tmp_path / "out", World().tools())
    before = (tmp_path / "out" / "b.ledger" / "manifest.json").read_bytes()
    assert run_and_tell(variants, tmp_path / "out", World({"B": 127}).tools()) == 1
    assert (tmp_path / "out" / "b.ledger" / "manifest.json").read_bytes() == before
    compared = (tmp_path / "out" / "plots" / "compared.csv").read_text().splitlines()
    assert not [row for row in csv.reader(compared) if row[0] == "b"]


def test_without_a_name_the_folder_is_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_folder(None, plain("a"), force=False) == Path("variants")
    Path("variants").mkdir()
    assert choose_folder(None, plain("a"), force=False) == Path("variants-2")


def test_repeats_are_one_row_and_one_line_with_what_lies_between_them(tmp_path: Path) -> None:
    """The n-th run takes n MiB, so that the repeats of a take 1, 3 and 5, of b 2, 4 and 6."""
    variants = make_variants(["prog", "{variant}"], [("a", "A"), ("b", "B")], {}, 3)
    world = World()
    assert run_and_tell(variants, tmp_path / "out", world.tools()) == 0
    runs = [read_run(tmp_path / "out" / f"{variant.name}.ledger") for variant in variants]
    comparison = compare(runs)
    assert [(row.figures.name, row.repeats, row.figures.peak_bytes) for row in comparison.rows] == [
        ("a", 3, 3 * MIB),
        ("b", 3, 4 * MIB),
    ]
    assert comparison.rows[1].spread["peak_bytes"] == (2 * MIB, 6 * MIB)
    assert comparison.rows[1].ratio_to_first["peak_bytes"] == pytest.approx(4 / 3)
    assert "4.0 ± 2.0 MiB" in comparison_markdown(comparison)
    assert any("shown as their mean" in note for note in comparison.notes)
    (first, second), _ = build_series(runs)
    assert (first.name, first.peak[1], first.repeats) == ("a", 3 * MIB, 3)
    assert second.low is not None
    assert second.high is not None
    assert (second.high.max(), second.low[1], second.values[1]) == (6 * MIB, 2 * MIB, 4 * MIB)
    assert len(compare([runs[0], read_run(tmp_path / "out" / "b-r1.ledger")]).rows) == 2
    (row,) = list(csv.DictReader(comparison_csv(compare(runs[::2])).splitlines()))
    assert (row["repeats"], row["peak_bytes_lowest"], row["peak_bytes_highest"]) == ("3", str(MIB), str(5 * MIB))


def test_a_repeat_that_failed_is_not_in_the_mean(tmp_path: Path) -> None:
    variants = make_variants(["prog", "x"], [], {}, 3)
    world = World()

    def watch(command: tuple[str, ...], place: Path) -> int:
        world.statuses["x"] = 7 * (len(world.ran) == 1)
        return world.watch(command, place)

    assert run_and_tell(variants, tmp_path / "out", replace(world.tools(), watch=watch)) == 1
    (row,) = compare([read_run(tmp_path / "out" / f"r{turn}.ledger") for turn in (1, 2, 3)]).rows
    assert (row.figures.name, row.repeats, row.figures.peak_bytes, row.figures.exit_status) == ("run", 2, 2 * MIB, 7)
