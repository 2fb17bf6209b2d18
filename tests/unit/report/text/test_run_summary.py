from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from present import present
from rich.cells import cell_len
from synthetic import make_run
from synthetic_lives import GIB, MIB

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.failures.oom import explain_oom
from gpuledger.analyze.memory.groups import group_accounts
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.view.chosen_devices import highest_devices
from gpuledger.analyze.view.closing_notes import closing_notes
from gpuledger.analyze.view.options import ViewOptions
from gpuledger.analyze.view.view import build_view
from gpuledger.model.energy_window import WITHOUT_ENERGY
from gpuledger.model.manifest import read_json
from gpuledger.model.run import Run, read_run, write_table
from gpuledger.model.run_directory import write_json
from gpuledger.model.schema.tables import TABLES
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.html.sections.notes import SECTION
from gpuledger.report.html.sections.section import Page
from gpuledger.report.json.document import show_document
from gpuledger.report.text.run_summary import print_run_summary, run_summary_lines
from gpuledger.report.text.show_text import closing_lines


def changed(run: Path, **facts: Any) -> Run:
    manifest = read_json(run / "rank-0" / "manifest.json")
    write_json(run / "rank-0" / "manifest.json", manifest | facts)
    return read_run(run)


def empty(run: Path) -> Path:
    write_table(run / "rank-0", TABLES["blocks"].arrow_schema().empty_table(), "blocks")
    return run


def summary(run: Run, width: int | None = None) -> str:
    return "\n".join(run_summary_lines(run, Terminal(width)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "one.ledger", blocks=500)


def test_a_run_in_a_few_lines(run: Path) -> None:
    lines = run_summary_lines(read_run(run), Terminal())
    labels = [line[:20].strip() for line in lines if line[0] != " "]
    assert labels[:3] == ["Peak memory", "Largest categories", "Largest modules"]
    assert next(label for label in labels[3:] if label != "To lower the peak") == "Step time"
    assert lines[-2].startswith("Next  ")
    assert len(lines) <= 14
    accounts = break_down(rank := read_run(run).rank(), find_peak(rank)).accounts
    for group in group_accounts(accounts, "module")[:3]:
        assert f"{group.label} " in lines[2]


def test_equal_modules_of_several_models_are_one_of_the_largest(run: Path) -> None:
    table = read_run(run).rank().table("modules")
    paths = [f"models[{row}].fc" if "." in path else path for row, path in enumerate(table["path"].to_pylist())]
    place = table.column_names.index("path")
    write_table(run / "rank-0", table.set_column(place, table.schema.field(place), pa.array(paths)), "modules")
    line = next(line for line in summary(read_run(run)).splitlines() if line.startswith("Largest modules"))
    assert re.search(r"modules     \d\d × models\[\*\]\.fc \d", line)


@pytest.mark.parametrize("kind", ["notes", "left_out"])
def test_that_no_energy_was_measured_is_said_whether_it_was_requested_or_not(kind: str, tmp_path: Path) -> None:
    run = changed(make_run(tmp_path / "cpu.ledger", blocks=200, cuda=False), **{kind: [WITHOUT_ENERGY]})
    assert closing_notes(build_view(run)).count(WITHOUT_ENERGY) == 1


@pytest.mark.parametrize("cuda", [True, False])
def test_what_was_left_out_on_a_gpu_is_said_with_its_option(cuda: bool, tmp_path: Path) -> None:
    note = "No timing measurement: the program uses CUDA graphs; --passes memory,time measures it anyway."
    run = changed(make_run(tmp_path / "one.ledger", blocks=200, cuda=cuda), left_out=[note])
    assert closing_notes(build_view(run)).count(note) == cuda


def test_it_ends_with_commands_that_can_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "my run.ledger", blocks=200)
    assert f"gpuledger show '{run}' --by module" in summary(read_run(run), 30)
    monkeypatch.chdir(tmp_path)
    assert "gpuledger show 'my run.ledger' --by module" in summary(read_run(run), 30)
    assert "gpuledger report 'my run.ledger' --open" in summary(read_run(run), 30)


def test_out_of_memory_is_explained(run: Path) -> None:
    failure = {
        "device_idx": 0,
        "tried_bytes": 2 * GIB,
        "total_bytes": 140 * GIB,
        "free_bytes": 512 * MIB,
        "largest_free_bytes": 96 * MIB,
    }
    text = summary(changed(run, oom=[failure]))
    assert "2.0 GiB did not fit on cuda:0" in text
    assert "free on the GPU: 512.0 MiB of 140.0 GiB" in text
    assert "largest free block: 96.0 MiB" in text
    rank = read_run(run).rank()
    (explained,) = explain_oom(rank)
    assert explained.holders is not None
    top = max(explained.holders.accounts, key=lambda account: account.bytes)
    held = next(line for line in text.splitlines() if "held by" in line)
    assert top.category in held
    assert text.count("held by") == 2


def test_host_memory_has_the_peak_of_each_kind(run: Path) -> None:
    kinds = [
        {"kind": "resident", "bytes": 2 << 30, "peak_bytes": 3 << 30},
        {"kind": "shared", "bytes": 1 << 30, "peak_bytes": 1 << 30},
        {"kind": "pinned", "bytes": 0, "peak_bytes": 13},
        {"kind": "workers", "bytes": 1 << 30, "peak_bytes": 5 << 30},
        {"kind": "dev_shm", "bytes": 0, "peak_bytes": 256 << 20},
    ]
    assert "Host memory" not in summary(read_run(run))
    recorded = changed(run, host_memory=kinds, host_limit_bytes=64 << 30)
    peaks = "peaks: resident 3.0 GiB, started processes 5.0 GiB, /dev/shm of all processes 256.0 MiB"
    assert f"Host memory         {peaks}; limit of the cgroup 64.0 GiB" in summary(recorded)
    alone = changed(run, host_memory=kinds[:1], host_limit_bytes=None)
    assert "Host memory         peak: resident 3.0 GiB\n" in summary(alone)
    document = show_document(build_view(recorded))["host_memory"]
    assert document["limit_bytes"] == 64 << 30
    assert document["kinds"]["workers"] == {"bytes": 1 << 30, "peak_bytes": 5 << 30}
    assert document["kinds"].keys() == {one["kind"] for one in kinds}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"exit_status": 1, "has_all_steps": True}, "with exit status 1 after 5 steps"),
        ({"exit_status": 1, "exit_error": "ValueError"}, "with exit status 1 (ValueError) after at least 5 steps"),
        ({"exit_status": 0, "exit_error": "ValueError"}, None),
        ({"exit_status": 137, "signal": 9}, "with SIGKILL after at least 5 steps"),
        ({"exit_status": 250, "signal": 122, "has_all_steps": True}, "with signal 122 after 5 steps"),
        ({"exit_status": 0}, None),
    ],
)
def test_a_program_that_failed_says_how(run: Path, facts: dict[str, Any], expected: str | None) -> None:
    ended = {key: value for key, value in facts.items() if key in ("exit_status", "signal")}
    write_json(run / "manifest.json", read_json(run / "manifest.json") | ended)
    of_rank = {"has_all_steps": bool(facts.get("has_all_steps")), "exit_error": facts.get("exit_error")}
    recorded = changed(run, steps_seen=5, **of_rank)
    line = next((line for line in summary(recorded).splitlines() if line.startswith("Program ended")), None)
    assert line == (None if expected is None else f"Program ended       {expected}")
    document = show_document(build_view(recorded))
    assert (document["exit_status"], document["signal"]) == (facts.get("exit_status"), facts.get("signal"))


def test_notes_of_the_whole_run_are_shown_with_those_of_its_devices(run: Path) -> None:
    write_json(run / "manifest.json", read_json(run / "manifest.json") | {"notes": ["The samples end early."]})
    view = build_view(changed(run, notes=["A step was cut off.", "The samples end early."]))
    notes = ["The samples end early.", "A step was cut off."]
    assert show_document(view)["notes"][:2] == notes
    assert [line[6:] for line in closing_lines(view, "run", Terminal())[1:3]] == notes
    assert present(SECTION.data)(view.highest, Page(view, {}, {}, {}))["notes"] == notes


def test_out_of_memory_before_any_block(run: Path) -> None:
    failure = {"device_idx": 0, "tried_bytes": 2 * GIB, "total_bytes": None, "free_bytes": None}
    text = summary(changed(empty(run), oom=[failure]))
    assert "2.0 GiB did not fit on cuda:0" in text
    assert "held by" not in text


@pytest.mark.parametrize(
    ("seen", "asked", "words"),
    [
        (0, [5, 9], "steps 5 to 9 were not reached: no step was seen"),
        (2, [1, 3], "step 3 was not reached: the program ended after 2 steps"),
        (1, [5, 9], "steps 5 to 9 were not reached: the program ended after 1 step"),
    ],
)
def test_steps_that_were_not_reached_are_named(run: Path, seen: int, asked: list[int], words: str) -> None:
    facts = {"steps_seen": seen, "window": {"asked": asked}}
    assert f"Note  {words.capitalize()}." in summary(changed(run, **facts))
    assert f"Nothing recorded    {words}" in summary(changed(empty(run), **facts))


def test_a_program_without_steps_is_told_so_once(run: Path) -> None:
    facts = {"steps_seen": 0, "window": {"asked": [1, 3]}}
    assert "not reached" not in summary(changed(run, **facts))
    words = "steps 1 to 3 were not reached: no step was seen"
    assert f"Nothing recorded    {words}" in summary(changed(empty(run), **facts))


def test_a_program_that_failed_before_it_was_recorded_says_how(run: Path) -> None:
    write_json(run / "manifest.json", read_json(run / "manifest.json") | {"exit_status": 1})
    facts = {"steps_seen": 0, "window": {"asked": [1, 3]}, "exit_error": "ValueError", "left_out": [WITHOUT_ENERGY]}
    lines = summary(changed(empty(run), **facts)).splitlines()
    assert lines[:2] == [
        "Nothing recorded    steps 1 to 3 were not reached: no step was seen",
        "Program ended       with exit status 1 (ValueError)",
    ]
    assert not any(WITHOUT_ENERGY in line for line in lines)


@pytest.mark.parametrize("asked", [[1, 3], [1, 1 << 62], []])
def test_nothing_is_said_when_all_steps_were_reached(run: Path, asked: list[int]) -> None:
    assert "not reached" not in summary(changed(run, steps_seen=8, window={"asked": asked}))


def test_a_run_without_a_process_says_so(tmp_path: Path, run: Path) -> None:
    bare = tmp_path / "bare.ledger"
    bare.mkdir()
    write_json(bare / "manifest.json", read_json(run / "manifest.json") | {"notes": ["sh: no Python was started"]})
    text = summary(read_run(bare))
    assert text.splitlines() == [
        "Nothing recorded    no process of the program used PyTorch",
        "Note  sh: no Python was started",
    ]


def test_several_ranks_name_the_imbalance(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "two.ledger", ranks=2, blocks=300))
    peaks = [break_down(rank, find_peak(rank)).allocated_bytes for rank in run.ranks]
    highest = peaks.index(max(peaks))
    assert f"rank {highest} (cuda:0)" in next(line for line in summary(run).splitlines() if line.startswith("Ranks"))


def test_a_note_of_several_ranks_names_those_that_have_it(tmp_path: Path) -> None:
    path = make_run(tmp_path / "three.ledger", ranks=3, blocks=300)
    write_json(path / "manifest.json", read_json(path / "manifest.json") | {"notes": ["Of the run."]})
    for number, notes in enumerate((["Of all."], ["Of all.", "Of one.", "Of two."], ["Of two.", "Of all."])):
        facts = {"notes": notes, "steps_seen": 4 + number, "window": {"asked": [1, 6]}}
        place = path / f"rank-{number}" / "manifest.json"
        write_json(place, read_json(place) | facts)
    run = read_run(path)
    notes = ["Of the run.", "All ranks: Of all.", "Rank 1: Of one.", "Ranks 1 and 2: Of two."]
    for view in (build_view(run), build_view(run, devices=highest_devices(run.ranks))):
        assert [note for note in view.notes if "Of " in note] == notes
        assert [note for note in show_document(view)["notes"] if "Of " in note] == notes
        assert [note for note in closing_notes(view) if "Of " in note] == notes
    view = build_view(run)
    assert set(notes) <= set(present(SECTION.data)(view.devices[0], Page(view, {}, {}, {}))["notes"])
    assert "Of one." in show_document(view)["ranks"][1]["notes"]
    assert "Of one." in build_view(run, ranks=[run.ranks[1]]).notes
    reached = [note for note in closing_notes(view) if "not reached" in note]
    assert reached == [
        "Rank 0: Steps 5 to 6 were not reached: the program ended after 4 steps.",
        "Rank 1: Step 6 was not reached: the program ended after 5 steps.",
    ]


def test_a_failed_rank_is_said_first(tmp_path: Path) -> None:
    first, *_ = summary(changed(make_run(tmp_path / "two.ledger", ranks=2, blocks=300), status="cut off")).splitlines()
    assert first == "Missing or failed   Rank 0 was killed. The other ranks closed their recordings."


@pytest.mark.parametrize("width", [40, 80, 120])
def test_it_fits_the_terminal(tmp_path: Path, width: int) -> None:
    run = read_run(make_run(tmp_path / "odd.ledger", hostile_names=True, blocks=300))
    lines = [line for line in run_summary_lines(run, Terminal(width)) if "gpuledger" not in line]
    assert max(map(cell_len, lines)) <= width
    assert "\x00" not in "".join(lines)


def test_it_goes_to_the_stream_it_is_given(run: Path) -> None:
    stream = io.StringIO()
    print_run_summary(read_run(run), stream)
    assert stream.getvalue() == summary(read_run(run)) + "\n"


@pytest.mark.parametrize(
    ("options", "rows", "expected"),
    [
        ({"group_by": "tensor"}, 3, ("show run --by tensor -n 50", "report run --open")),
        ({"group_by": "tensor"}, 20, ("show run --by tensor -n 80", "report run --open")),
        ({"group_by": "module", "at": "end"}, 2, ("show run --by module --at end -n 50", "balance run")),
        ({"group_by": "module", "sort": "bytes", "fold": True}, 1, ("show run --by module --sort bytes --fold -n 50",)),
        ({"group_by": "phase"}, None, ("show run --by module -n 50", "report run --open")),
        ({"group_by": "module"}, 1000, ("show run --by tensor", "balance run")),
        ({}, None, ("show run --by module -n 50", "report run --open")),
    ],
)
def test_the_next_command_shows_the_rest_of_a_table(
    options: dict[str, Any], rows: int | None, expected: tuple[str, ...], run: Path
) -> None:
    view = build_view(read_run(run), options=ViewOptions(**options))
    lines = "\n".join(closing_lines(view, "run", Terminal(), rows)).splitlines()
    commands = [line[6:].removeprefix("gpuledger ") for line in lines if "gpuledger " in line][-2:]
    assert commands[: len(expected)] == list(expected)
